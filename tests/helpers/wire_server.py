"""A local server that speaks vLLM's and OpenAI's wire format and fails when told to, and an engine on it."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from ratchet.core.config import ModelConfig
from ratchet.core.http.retry import Backoff
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import Completion, SamplingParams
from ratchet.inference.http.chat_api import ChatApiEngine
from ratchet.inference.http.vllm import HttpEngine
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.fake_server import FakeServer, Reply, Request, run_server

FAST = Backoff(tries=4, first=0.01, longest=0.05)
GREEDY = SamplingParams(temperature=0.0, max_tokens=50)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def failure(
    status: int = 0,
    message: str = "scripted fault",
    headers: Mapping[str, str] = {},
    raw: str | None = None,
    **more: Any,
) -> Reply:
    """What the server does in place of an answer: an error, this text, or `more` of a Reply. With a delay alone, the
    answer comes after it."""
    if raw is not None:
        return Reply(body=raw, **more)
    if status:
        error = {"message": message, "type": "Error", "param": None, "code": status}
        return Reply(status, {"error": error}, headers, **more)
    return Reply(body=None if more.keys() <= {"delay"} else "", **more)


def refusal(status: int, message: str, kind: str) -> Reply:
    return Reply(status, {"error": {"message": message, "type": kind, "code": status}})


class Server(FakeServer):
    """One served model, 'tiny', that says `ids`."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self.asking: list[HttpEngine | ChatApiEngine] = []
        """Engines of a test that are to be closed with it."""
        self.judge: Callable[[Any], Reply | None] = lambda body: None
        """What happens to a body where no fault is left."""
        self.adapters: dict[str, str] = {}
        self.lora = True
        self.ignores_adapters = False
        self.key = ""
        self.window = 1000
        self.ids: list[int] = []
        self.text = "Velm"
        self.finish: str | None = "stop"
        self.choices = 1
        self.patch: dict[str, Any] = {}
        """Overrides in an answer, by field: 'choice.token_ids', 'usage.prompt_tokens' and so on."""
        self.at_once = self.most_at_once = 0
        self.pause = 0.01

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    def asked(self, path: str = "completions") -> list[Request]:
        """Without the fixed prompt of inference/http/vllm.py, which is text."""
        found = [r for r in self.requests if r.path == f"/v1/{path}"]
        return [r for r in found if not isinstance((r.body or {}).get("prompt"), str)]

    def reply(self, request: Request) -> Reply:
        body, sent = request.body, request.headers.get("authorization")
        if self.key and sent != f"Bearer {self.key}":
            return Reply(401, {"error": f"Unauthorized: {sent}"})
        if request.path == "/v1/models":
            base = {"id": "tiny", "object": "model", "max_model_len": self.window, "root": "x", "parent": None}
            loras = [{"id": name, "root": path, "parent": "tiny"} for name, path in self.adapters.items()]
            return Reply(body={"object": "list", "data": [base, *loras]})
        fault = self.faults.pop(0) if self.faults else self.judge(body)
        if fault is not None:
            if fault.body is not None:
                return fault
            time.sleep(fault.delay)
        if request.path == "/v1/load_lora_adapter" and self.lora:
            return self._load(body)
        if request.path in ("/v1/completions", "/v1/chat/completions"):
            if body["model"] != "tiny" and body["model"] not in self.adapters:
                return refusal(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
            return self._complete(body) if request.path == "/v1/completions" else self._chat()
        return Reply(404, {"detail": "Not Found"})

    def _load(self, body: Any) -> Reply:
        if body["lora_name"] in self.adapters:
            message = f"The lora adapter '{body['lora_name']}' has already been loaded."
            return refusal(400, message, "InvalidUserInput")
        self.adapters[body["lora_name"]] = body["lora_path"]
        return Reply(body="Success: LoRA adapter added successfully.")

    def _complete(self, body: Any) -> Reply:
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.pause)
        with self.lock:
            self.at_once -= 1
        prompt = body["prompt"]
        if isinstance(prompt, str):  # the fixed one of inference/http/vllm.py
            changed = body["model"] in self.adapters and not self.ignores_adapters
            logprobs = {"token_logprobs": [-2.5 if changed else -0.5]}
            return self._answer({}, {"token_ids": [1], "logprobs": logprobs}, {"prompt_tokens": 6})
        if len(prompt) >= self.window:
            message = (
                f"This model's maximum context length is {self.window} tokens. However, your prompt contains "
                f"{len(prompt)} input tokens."
            )
            return refusal(400, message, "BadRequestError")
        ids = self.ids[: body["max_tokens"]]
        choice = {
            "index": 0,
            "text": "the server's own decoding, which nobody looks at",
            "logprobs": None,
            "finish_reason": self.finish if len(ids) == len(self.ids) else "length",
            "stop_reason": None,
            "token_ids": ids if body.get("return_token_ids") else None,
            "prompt_token_ids": prompt,
        }
        if body.get("logprobs") is not None:
            found = [-0.5 * i for i in range(len(ids))]
            choice["logprobs"] = {"token_logprobs": found, "tokens": [], "top_logprobs": [], "text_offset": []}
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "total_tokens": len(prompt) + len(ids),
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        return self._answer({"id": "cmpl-1", "object": "text_completion", "model": "tiny"}, choice, usage)

    def _chat(self) -> Reply:
        message = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
        return self._answer({"id": "chatcmpl-1", "object": "chat.completion", "model": "tiny"}, choice, usage)

    def _answer(self, answer: dict[str, Any], choice: dict[str, Any], usage: dict[str, Any]) -> Reply:
        answer |= {"choices": [choice] * self.choices, "usage": usage}
        for key, value in self.patch.items():
            section, _, name = key.partition(".")
            if name:
                {"choice": choice, "usage": usage}[section][name] = value
            else:
                answer[section] = value
        return Reply(body=answer)


def running(port: int = 0) -> AbstractContextManager[Server]:
    return run_server(Server(port))


adapter = save_adapter


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
