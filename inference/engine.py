"""The engine protocol: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from ratchet.inference.chat import ChatFormat
from ratchet.inference.completion import Completion, Message, SamplingParams


class EngineError(Exception):
    """A request that this engine could not serve, after retrying what is transient. Fails one trajectory."""


class Engine(Protocol):
    """What runs a language model. Engines take token ids and return the sampled ones, exactly; those over text say
    otherwise in the completion, or by their `format` (`inference.text_format`)."""

    @property
    def format(self) -> ChatFormat:
        """The model's tokenizer and chat template."""
        ...

    max_context: int
    """The limit of prompt and new tokens together."""
    fingerprint: str
    """A digest of the model: models with equal weights and tokenizer have an equal fingerprint."""

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Completion:
        """Sample one completion of `prompt`, token ids of any length below `max_context`.

        `adapter` is a LoRA folder (None: the base model). `messages` is the same dialogue as text, which only engines
        over text use. Raises EngineError where this request cannot be served, and UserError where no request could be
        (no server, an adapter that is damaged).
        """
        ...

    async def close(self) -> None:
        """Stop the engine and release its memory or connections."""
        ...


_question: ContextVar[str] = ContextVar("question", default="")


@contextmanager
def asking_about(question: str) -> Iterator[None]:
    """What is asked of engines inside, also by tasks that are started there, is about one question: engines over
    several servers ask the one that has its prefix in the cache, without every system having to name it."""
    token = _question.set(question)
    try:
        yield
    finally:
        _question.reset(token)


def current_question() -> str:
    """The question of `asking_about`; empty outside of it."""
    return _question.get()
