"""What the gateway's other protocols share: their requests become one for chat completions, and its answer theirs."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ratchet.agents.external.recording import ProgramRequest, refused

Answer = dict[str, Any]
TEXTS = ("text", "input_text", "output_text")


class Protocol(typing.Protocol):
    """A request in one of the gateway's protocols, and how it is answered."""

    def chat(self) -> ProgramRequest:
        """The same for chat completions. Raises ApiError for what has no equivalent."""
        ...

    def answer(self, completion: Answer) -> Answer:
        """A chat completion in this protocol."""
        ...

    def events(self, completion: Answer) -> Iterator[Answer]:
        """The same as the events of a stream."""
        ...


def chat_request(where: str, **fields: Any) -> ProgramRequest:
    """A checked request. ApiError that names what is wrong with it; `where`: what its messages are called."""
    try:
        return ProgramRequest.model_validate({key: value for key, value in fields.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"])) or "the request"
        raise refused(path.replace("messages", where, 1), first["msg"]) from None


def text_of(content: Any, where: str) -> str:
    """The text of a content, which is a text or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise refused(where, "expected a text or a list of parts")
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") not in TEXTS or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise refused(where, f"a part of type {str(kind)[:50]!r} cannot be read; send text")
        texts.append(part["text"])
    return "\n".join(texts)


def tool(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """A function as chat completions have it."""
    given = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in given.items() if value is not None}}


def add_call(messages: list[dict[str, Any]], call: dict[str, Any]) -> None:
    """Put a call into the assistant's message that it belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call)
