"""The inputs of an engine beside a prompt, its completions, and the turns of a dialogue."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from ratchet.core.records import Author
from ratchet.core.text import read_json


class Message(TypedDict):
    """One message of a dialogue as text."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class SamplingParams:
    """Settings of one completion."""

    temperature: float
    """0 decodes greedily."""
    top_p: float = 1.0
    """The probability mass of the nucleus, in (0, 1]; 1 samples from all tokens."""
    max_tokens: int = 512
    """The limit of new tokens, the end-of-turn token included."""
    seed: int = 0
    """Seeds the request's own random stream. Not bitwise reproducible: the rest of the batch may change rounding."""
    schema: dict[str, Any] | str | None = None
    """Constrains the output to a JSON schema, or to a grammar in xgrammar's notation; None: free text."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end the completion beside the end-of-turn token."""
    logprobs: bool = False
    """Return the log-probability of each new token under the unmodified model (temperature 1); not with a schema."""

    def __post_init__(self) -> None:
        if self.logprobs and self.schema is not None:
            raise ValueError("a completion under a schema has no log-probabilities of the model's own")


FinishReason = Literal["stop", "length", "context", "timeout"]
"""stop: the model ended its turn. length: max_tokens. context: the model's window. timeout: the request's limit."""


@dataclass(frozen=True)
class Completion:
    """The result of one request."""

    ids: tuple[int, ...]
    """The sampled token ids, the end-of-turn token included when finish_reason is 'stop'; `inserted` are not
    sampled, and nor is, in the in-process engine, what a schema leaves no choice about."""
    text: str
    """The ids decoded, without the end-of-turn token."""
    finish_reason: FinishReason
    prompt_tokens: int
    """The number of tokens of the prompt."""
    cached_tokens: int = 0
    """The number of prompt tokens that came out of the prefix cache."""
    logprobs: tuple[float, ...] | None = None
    """The log-probability (natural logarithm) of each of `ids`; None where it was not asked for."""
    inserted: tuple[int, int] = (0, 0)
    """(start, end) of the ids that were not sampled: the engine's client closed a thought with them."""
    hidden_thought_tokens: int = 0
    """Tokens of a thought that a service counts and does not show."""
    billed_tokens: int | None = None
    """The number of new tokens that a service counts, its reasoning included; None: those of `ids`."""

    @property
    def new_tokens(self) -> int:
        return len(self.ids) if self.billed_tokens is None else self.billed_tokens


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
        """`arguments`: a value, or JSON of it; nothing, as some programs send it for no arguments, is {}."""
        if isinstance(arguments, str):
            try:
                arguments = read_json(arguments) if arguments.strip() else None
            except ValueError:
                return cls(name, arguments, arguments, id)
        arguments = {} if arguments is None else arguments
        meaning = json.dumps(_whole_numbers(arguments), sort_keys=True, ensure_ascii=False)
        return cls(name, meaning, json.dumps(arguments, ensure_ascii=False), id)

    @property
    def value(self) -> Any:
        """The arguments as a value."""
        try:
            return read_json(self.arguments, finite=False)
        except ValueError:
            return self.arguments


def _whole_numbers(value: Any) -> Any:
    """The value with 5000 for 5000.0, as JavaScript writes it."""
    if isinstance(value, list):
        return [*map(_whole_numbers, value)]
    if isinstance(value, dict):
        return {key: _whole_numbers(inner) for key, inner in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True)
class ChatTurn:
    """One message of a program's dialogue with its model."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    thought: str = field(default="", compare=False)
    """An assistant's thought before the text, without the markers."""
    calls: tuple[FunctionCall, ...] = ()
    answers: str = field(default="", compare=False)
    """The id of the call whose result this is."""
    raw: str = field(default="", compare=False)
    """A model's whole reply, as it was sampled."""

    @property
    def message(self) -> Message:
        """For engines over text."""
        return {"role": "user" if self.role == "tool" else self.role, "content": self.raw or self.text}
