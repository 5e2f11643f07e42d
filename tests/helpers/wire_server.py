"""A local server that speaks vLLM's and OpenAI's wire format and fails when told to, and an engine on it."""

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ratchet.core.config import ModelConfig
from ratchet.core.http.retry import Backoff
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import Completion, SamplingParams
from ratchet.inference.http.chat_api import ChatApiEngine
from ratchet.inference.http.vllm import HttpEngine
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.odd_answers import flood, send

FAST = Backoff(tries=4, first=0.01, longest=0.05)
GREEDY = SamplingParams(temperature=0.0, max_tokens=50)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


@dataclass
class Fault:
    """What the server does in place of an answer."""

    status: int = 0
    message: str = "scripted fault"
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    delay: float = 0.0
    raw: str | None = None
    wire: bytes | None = None
    """A whole answer, status line and headers included; the connection ends with it."""
    flood: int = 0
    """Blanks without an end, or so many bytes of them."""


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Server(ThreadingHTTPServer):
    """One served model, 'tiny', that says `ids`; faults are used up one a request, in order."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.connections: list[socket.socket] = []
        self.requests: list[Request] = []
        self.asking: list[HttpEngine | ChatApiEngine] = []
        """Engines of a test that are to be closed with it."""
        self.faults: list[Fault] = []
        self.judge: Callable[[Any], Fault | None] = lambda body: None
        """What happens to a body where no fault is left."""
        self.adapters: dict[str, str] = {}
        self.lora = True
        self.ignores_adapters = False
        self.key = ""
        self.window = 1000
        self.ids: list[int] = []
        self.text = "Velm"
        self.finish: str | None = "stop"
        self.patch: dict[str, Any] = {}
        """Overrides in an answer, by field: 'choice.token_ids', 'usage.prompt_tokens' and so on."""
        self.at_once = self.most_at_once = 0
        self.pause = 0.01
        self.flooded = 0
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError | json.JSONDecodeError):  # of what `stop` cut off
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def asked(self, path: str = "completions") -> list[Request]:
        """Without the fixed prompt of inference/http/vllm.py, which is text."""
        found = [r for r in self.requests if r.path == f"/v1/{path}"]
        return [r for r in found if not isinstance((r.body or {}).get("prompt"), str)]

    def stop(self) -> None:
        """As a killed server does: nothing listens any more, and open connections break."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def running(port: int = 0) -> Iterator[Server]:
    server = Server(port)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.stop()


adapter = save_adapter


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.server.connections.append(self.connection)

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        self._serve(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _serve(self, body: Any) -> None:
        server = self.server
        server.requests.append(Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        if server.key and self.headers.get("authorization") != f"Bearer {server.key}":
            return self._send(401, {"error": f"Unauthorized: {self.headers.get('authorization')}"})
        if self.path == "/v1/models":
            base = {"id": "tiny", "object": "model", "max_model_len": server.window, "root": "x", "parent": None}
            loras = [{"id": name, "root": path, "parent": "tiny"} for name, path in server.adapters.items()]
            return self._send(200, {"object": "list", "data": [base, *loras]})
        fault = server.faults.pop(0) if server.faults else server.judge(body)
        if fault is not None:
            time.sleep(fault.delay)
            if fault.drop:
                self.close_connection = True
                return None
            if fault.wire is not None or fault.flood:
                self.close_connection = True
                send(self.connection, fault.wire or b"")
                server.flooded += flood(self.connection, fault.flood)
                return None
            if fault.raw is not None:
                return self._send(200, fault.raw)
            if fault.status:
                error = {"message": fault.message, "type": "Error", "param": None, "code": fault.status}
                return self._send(fault.status, {"error": error}, fault.headers)
        if self.path == "/v1/load_lora_adapter" and server.lora:
            return self._load(body)
        if self.path == "/v1/completions":
            return self._complete(body)
        if self.path == "/v1/chat/completions":
            return self._chat(body)
        return self._send(404, {"detail": "Not Found"})

    def _load(self, body: Any) -> None:
        if body["lora_name"] in self.server.adapters:
            message = f"The lora adapter '{body['lora_name']}' has already been loaded."
            return self._send(400, {"error": {"message": message, "type": "InvalidUserInput", "code": 400}})
        self.server.adapters[body["lora_name"]] = body["lora_path"]
        return self._send(200, "Success: LoRA adapter added successfully.")

    def _known(self, name: str) -> bool:
        if name == "tiny" or name in self.server.adapters:
            return True
        message = f"The model `{name}` does not exist."
        self._send(404, {"error": {"message": message, "type": "NotFoundError", "code": 404}})
        return False

    def _complete(self, body: Any) -> None:
        server = self.server
        with server.lock:
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        time.sleep(server.pause)
        with server.lock:
            server.at_once -= 1
        if not self._known(body["model"]):
            return
        if isinstance(body["prompt"], str):
            return self._probe(body)
        if len(body["prompt"]) >= server.window:
            message = (
                f"This model's maximum context length is {server.window} tokens. However, your prompt contains "
                f"{len(body['prompt'])} input tokens."
            )
            return self._send(400, {"error": {"message": message, "type": "BadRequestError", "code": 400}})
        ids = server.ids[: body["max_tokens"]]
        choice = {
            "index": 0,
            "text": "the server's own decoding, which nobody looks at",
            "logprobs": None,
            "finish_reason": server.finish if len(ids) == len(server.ids) else "length",
            "stop_reason": None,
            "token_ids": ids if body.get("return_token_ids") else None,
            "prompt_token_ids": body["prompt"],
        }
        if body.get("logprobs") is not None:
            logprobs = [-0.5 * i for i in range(len(ids))]
            choice["logprobs"] = {"token_logprobs": logprobs, "tokens": [], "top_logprobs": [], "text_offset": []}
        usage = {
            "prompt_tokens": len(body["prompt"]),
            "completion_tokens": len(ids),
            "total_tokens": len(body["prompt"]) + len(ids),
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        self._answer({"id": "cmpl-1", "object": "text_completion", "model": "tiny"}, choice, usage)

    def _probe(self, body: Any) -> None:
        """The fixed prompt of inference/http/vllm.py."""
        changed = body["model"] in self.server.adapters and not self.server.ignores_adapters
        logprobs = {"token_logprobs": [-2.5 if changed else -0.5]}
        self._answer({}, {"token_ids": [1], "logprobs": logprobs}, {"prompt_tokens": 6})

    def _chat(self, body: Any) -> None:
        if not self._known(body["model"]):
            return
        message = {"role": "assistant", "content": self.server.text}
        choice = {"index": 0, "message": message, "finish_reason": self.server.finish}
        usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
        self._answer({"id": "chatcmpl-1", "object": "chat.completion", "model": "tiny"}, choice, usage)

    def _answer(self, answer: dict[str, Any], choice: dict[str, Any], usage: dict[str, Any]) -> None:
        answer |= {"choices": [choice], "usage": usage}
        for key, value in self.server.patch.items():
            section, _, name = key.partition(".")
            if name:
                {"choice": choice, "usage": usage}[section][name] = value
            else:
                answer[section] = value
        self._send(200, answer)

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("content-type", "text/plain" if isinstance(content, str) else "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a client that gave up
            self.end_headers()
            self.wfile.write(data)


class World:
    """An engine on the server, and a dialogue to continue."""

    def __init__(self, server: Server, folder: str, **settings: Any) -> None:
        values = {"engine": "vllm", "url": server.url, "served_name": "tiny", "timeout": 5.0} | settings
        self.server = server
        model = ModelConfig(path=folder, **values)
        self.engine = (ChatApiEngine if model.engine == "chat-api" else HttpEngine)(model, FAST)
        server.asking.append(self.engine)
        self.dialogue = Dialogue("r", "m", self.engine.format, True, "Be brief.")
        self.dialogue.user("Where is the harbour?")
        self.end = self.engine.format.end_of_turn
        # letter by letter: ids that no encoder would give for this text
        server.ids = [*(i for letter in "harbour" for i in self.engine.format.encode(letter)), self.end]

    async def ask(self, params: SamplingParams = GREEDY, adapter: str | None = None) -> Completion:
        return await self.engine.generate(self.dialogue.ids, params, adapter, self.dialogue.messages)
