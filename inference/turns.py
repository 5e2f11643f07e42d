"""Messages of a dialogue, and the token ids that they become."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from ratchet.core.records import Author
from ratchet.core.text import read_json
from ratchet.inference.completion import Message

Part = tuple[Author, tuple[int, ...]]
"""Token ids in a row that one author wrote."""
AUTHORS: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "user",
}
"""Who wrote a message, by its role."""


@dataclass(frozen=True)
class FunctionCall:
    """A tool that the model wants called. Equal calls have equal arguments, however their JSON is written."""

    name: str
    meaning: str
    """JSON of the arguments with sorted keys; as it was sent, where it is no JSON."""
    arguments: str = field(default="", compare=False)
    """JSON of the arguments in their own order."""
    id: str = field(default="", compare=False)

    @classmethod
    def of(cls, name: str, arguments: Any, id: str = "") -> FunctionCall:
        """`arguments`: a value, or JSON of it."""
        if isinstance(arguments, str):
            try:
                arguments = read_json(arguments)
            except ValueError:
                return cls(name, arguments, arguments, id)
        meaning = json.dumps(arguments, sort_keys=True, ensure_ascii=False)
        return cls(name, meaning, json.dumps(arguments, ensure_ascii=False), id)

    @property
    def value(self) -> Any:
        """The arguments as a value."""
        try:
            return read_json(self.arguments, finite=False)
        except ValueError:
            return self.arguments


@dataclass(frozen=True)
class ChatTurn:
    """One message of a program's dialogue with its model."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    thought: str = field(default="", compare=False)
    """Of an assistant's turn: what it thought before the text, without the markers."""
    calls: tuple[FunctionCall, ...] = ()
    answers: str = field(default="", compare=False)
    """Of a tool's result: the id of its call."""
    raw: str = field(default="", compare=False)
    """Of a model's reply: all of it, as it was sampled."""

    @property
    def message(self) -> Message:
        """For engines over text."""
        return {"role": "user" if self.role == "tool" else self.role, "content": self.raw or self.text}
