"""A local service that refuses what OpenAI's refuses, in its words: parameters by model, and JSON mode unannounced.

The rules are those of the guide to JSON mode and of error messages that users reported for GPT-4o mini and GPT-5
mini in 2024 and 2025.
"""

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ratchet.inference.http.chat_api import SCHEMA

KEY = "sk-local"
COMMON = {"model", "messages", "max_completion_tokens", "seed", "response_format", "stop", "n", "stream", "user"}
PARAMETERS = {
    "gpt-4o-mini": COMMON | {"max_tokens", "temperature", "top_p"},
    "gpt-5-mini": COMMON | {"temperature", "reasoning_effort", "verbosity"},
}
KNOWN = {"max_tokens", "temperature", "top_p", "reasoning_effort", "verbosity", "logprobs", "tools"} | COMMON


@dataclass
class Refusal(Exception):
    """An error as the service answers it."""

    message: str
    status: int = 400
    param: str | None = None
    code: str | None = None
    retry_after: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 429 else "requests"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


Reply = Callable[[dict[str, Any]], str]


class Service(ThreadingHTTPServer):
    """Answers `reply(body)`; `refusals` are used up one a request, before anything else is looked at."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.refusals: list[Refusal] = []
        self.reply: Reply = lambda body: "Velm"
        self.finish = "stop"
        self.message: dict[str, Any] = {}
        self.usage: dict[str, Any] = {
            "prompt_tokens": 20,
            "completion_tokens": 300,
            "total_tokens": 320,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 290},
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def closed_service() -> Iterator[Service]:
    service = Service()
    threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield service
    finally:
        service.shutdown()
        service.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            answer = self._answer(body)
        except Refusal as refusal:
            headers = {} if refusal.retry_after is None else {"retry-after": refusal.retry_after}
            return self._send(refusal.status, refusal.body, headers)
        return self._send(200, answer, {})

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.headers.get("authorization") != f"Bearer {KEY}":
            raise Refusal("Incorrect API key provided.", 401, code="invalid_api_key")
        if self.server.refusals:
            raise self.server.refusals.pop(0)
        if self.path != "/v1/chat/completions":
            raise Refusal(f"Invalid URL (POST {self.path})", 404)
        check_request(body)
        self.server.asked.append(body)
        message = {"role": "assistant", "content": self.server.reply(body), "refusal": None} | self.server.message
        choice = {"index": 0, "message": message, "finish_reason": self.server.finish, "logprobs": None}
        return {"object": "chat.completion", "model": body["model"], "choices": [choice], "usage": self.server.usage}

    def _send(self, status: int, content: Any, headers: Mapping[str, str]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def check_request(body: dict[str, Any]) -> None:
    """Raises Refusal for whatever the real service refuses."""
    model = body.get("model", "")
    if model not in PARAMETERS:
        raise Refusal(
            f"The model `{model}` does not exist or you do not have access to it.", 404, None, "model_not_found"
        )
    for name, value in body.items():
        if name not in KNOWN:
            raise Refusal(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
        if name not in PARAMETERS[model]:
            other = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
            message = f"Unsupported parameter: '{name}' is not supported with this model.{other}"
            raise Refusal(message, param=name, code="unsupported_parameter")
        if (model, name) == ("gpt-5-mini", "temperature") and value != 1:
            message = (
                f"Unsupported value: 'temperature' does not support {value} with this model. Only the default (1) "
            )
            raise Refusal(message + "value is supported.", param=name, code="unsupported_value")
    for message in body["messages"]:
        if message.keys() != {"role", "content"} or not isinstance(message["content"], str):
            raise Refusal("Invalid type for 'messages[0].content'.", param="messages", code="invalid_type")
    if "response_format" in body and not any("json" in message["content"].lower() for message in body["messages"]):
        why = "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."
        raise Refusal(why, param="messages")


def an_instance(schema: Any, root: Any, draw: random.Random) -> Any:
    """A value of a schema of ours, without the keys that may be left out."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return an_instance(draw.choice(choices), root, draw)
    if "enum" in schema or "const" in schema:
        return draw.choice(schema.get("enum") or [schema["const"]])
    kind = schema["type"]
    if kind == "object":
        needed = schema.get("required", ())
        return {n: an_instance(one, root, draw) for n, one in schema.get("properties", {}).items() if n in needed}
    if kind == "array":
        count = max(schema.get("minItems", 0), min(2, schema.get("maxItems", 2)))
        return [an_instance(schema["items"], root, draw) for _ in range(count)]
    return {"string": "Velm", "integer": 1, "number": 0.5, "boolean": draw.random() < 0.5, "null": None}[kind]


def any_answer(body: dict[str, Any]) -> str:
    """Any text of the form asked for."""
    if "response_format" not in body:
        return "Ada Torrin\nSUPPORTS"
    schema = json.loads(body["messages"][-1]["content"].rpartition(SCHEMA)[2])
    return json.dumps(an_instance(schema, schema, random.Random(json.dumps(body["messages"]))))
