"""The engine protocol: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict

from inference.chat import ChatFormat


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one completion."""

    temperature: float
    """0 is greedy."""
    top_p: float = 1.0
    max_tokens: int = 512
    seed: int = 0
    """Each request has its own random stream. Seeded, not bitwise: other batch mates may change rounding."""
    schema: dict[str, Any] | None = None
    """A JSON schema that the output is constrained to."""
    logprobs: bool = False
    """Also return the log-probability of each new token under the unmodified model (temperature 1, no grammar)."""


FinishReason = Literal["stop", "length", "context", "timeout"]
"""stop: the model ended its turn. length: max_tokens. context: the model's window. timeout: the request's limit."""


@dataclass(frozen=True)
class Completion:
    ids: tuple[int, ...]
    """What the model emitted, its end-of-turn token included when finish_reason is 'stop'."""
    text: str
    """The ids decoded, without the end-of-turn token."""
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that needed no prefill."""
    logprobs: tuple[float, ...] | None = None
    retokenised: bool = False
    """The server spoke text; ids were computed from it and may differ from those sampled."""


class EngineError(Exception):
    """A request that this engine could not serve, after retrying what is transient. Fails one trajectory."""


class Engine(Protocol):
    format: ChatFormat
    max_context: int
    fingerprint: str
    """Digest of the model: equal weights and tokenizer, equal fingerprint."""

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Completion:
        """Complete `prompt` under the LoRA folder `adapter` (None: the base model).

        `messages` is the same dialogue as text; only engines that cannot take token ids look at it.
        Raises EngineError.
        """
        ...

    async def close(self) -> None: ...
