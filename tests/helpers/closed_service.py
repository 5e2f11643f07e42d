"""A local service that refuses what OpenAI's refuses, in its words: parameters by model, and JSON mode unannounced.

The rules are those of the guide to JSON mode and of error messages that users reported for GPT-4o mini and GPT-5
mini in 2024 and 2025.
"""

import json
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ratchet.inference.http.chat_api import SCHEMA
from tests.helpers.fake_server import FakeServer, Reply, Request, run_server

KEY = "sk-local"
COMMON = {"model", "messages", "max_completion_tokens", "seed", "response_format", "stop", "n", "stream", "user"}
PARAMETERS = {
    "gpt-4o-mini": COMMON | {"max_tokens", "temperature", "top_p"},
    "gpt-5-mini": COMMON | {"temperature", "reasoning_effort", "verbosity"},
}
KNOWN = {"max_tokens", "temperature", "top_p", "reasoning_effort", "verbosity", "logprobs", "tools"} | COMMON


def refusal(
    message: str, status: int = 400, param: str | None = None, code: str | None = None, retry_after: str | None = None
) -> Reply:
    """An error as the service answers it."""
    kind = "invalid_request_error" if status < 429 else "requests"
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return Reply(status, {"error": {"message": message, "type": kind, "param": param, "code": code}}, headers)


class Service(FakeServer):
    """Answers `say(body)`; what it took is in `taken`."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[dict[str, Any]] = []
        self.say: Callable[[dict[str, Any]], str] = lambda body: "Velm"
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
        return f"{super().url}/v1"

    def reply(self, request: Request) -> Reply:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return refusal("Incorrect API key provided.", 401, code="invalid_api_key")
        return super().reply(request)

    def answer(self, request: Request) -> Reply:
        body = request.body
        if request.path != "/v1/chat/completions":
            return refusal(f"Invalid URL (POST {request.path})", 404)
        if refused := refused_request(body):
            return refused
        self.taken.append(body)
        message = {"role": "assistant", "content": self.say(body), "refusal": None} | self.message
        choice = {"index": 0, "message": message, "finish_reason": self.finish, "logprobs": None}
        choices = [choice] * body.get("n", 1)
        answer = {"object": "chat.completion", "model": body["model"], "choices": choices, "usage": self.usage}
        return Reply(body=answer)


def closed_service() -> AbstractContextManager[Service]:
    return run_server(Service())


def refused_request(body: dict[str, Any]) -> Reply | None:
    """The error of whatever the real service refuses."""
    model = body.get("model", "")
    if model not in PARAMETERS:
        return refusal(
            f"The model `{model}` does not exist or you do not have access to it.", 404, None, "model_not_found"
        )
    for name, value in body.items():
        if name not in KNOWN:
            return refusal(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
        if name not in PARAMETERS[model]:
            other = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
            message = f"Unsupported parameter: '{name}' is not supported with this model.{other}"
            return refusal(message, param=name, code="unsupported_parameter")
        if (model, name) == ("gpt-5-mini", "temperature") and value != 1:
            message = (
                f"Unsupported value: 'temperature' does not support {value} with this model. Only the default (1) "
            )
            return refusal(message + "value is supported.", param=name, code="unsupported_value")
    for message in body["messages"]:
        if message.keys() != {"role", "content"} or not isinstance(message["content"], str):
            return refusal("Invalid type for 'messages[0].content'.", param="messages", code="invalid_type")
    if "response_format" in body and not any("json" in message["content"].lower() for message in body["messages"]):
        why = "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."
        return refusal(why, param="messages")
    return None


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
