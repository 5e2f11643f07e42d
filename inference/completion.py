"""What an engine takes beside a prompt, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict


class Message(TypedDict):
    """One message of a dialogue as text."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one completion."""

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
    """Return the log-probability of each new token under the unmodified model (temperature 1, no grammar)."""


FinishReason = Literal["stop", "length", "context", "timeout"]
"""stop: the model ended its turn. length: max_tokens. context: the model's window. timeout: the request's limit."""


@dataclass(frozen=True)
class Completion:
    """What an engine returns for one request."""

    ids: tuple[int, ...]
    """The sampled token ids, the end-of-turn token included when finish_reason is 'stop'; `inserted` are not."""
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
        """The number of new tokens, as the engine or its service counts them."""
        return len(self.ids) if self.billed_tokens is None else self.billed_tokens
