"""The engine protocol: token ids in, token ids out; and a completion of a model that thinks first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from ratchet.inference.chat import ChatFormat
from ratchet.inference.completion import Completion, Message, SamplingParams


class EngineError(Exception):
    """A request that this engine could not serve, after retrying what is transient. Fails one trajectory."""


class Engine(Protocol):
    """A language model that runs. Engines take token ids and return the sampled ones, exactly; those over text say
    otherwise in the completion, or by their `format` (`inference.http.chat_api`)."""

    @property
    def format(self) -> ChatFormat:
        """The model's tokenizer and chat template."""

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

    async def close(self) -> None:
        """Stop the engine and release its memory or connections."""


@runtime_checkable
class SeveralEngine(Protocol):
    """An engine that takes several completions of one prompt in one request (`n` of OpenAI's API). Subclasses have
    `generate` from here."""

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Completion:
        """See `Engine.generate`."""
        return (await self.generate_several(prompt, params, 1, adapter, messages))[0]

    async def generate_several(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        n: int,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> list[Completion]:
        """As `Engine.generate`, `n` times with random numbers of their own. Fewer where the server gives no more."""


_question: ContextVar[str] = ContextVar("question", default="")


@contextmanager
def asking_about(question: str) -> Iterator[None]:
    """Say that what is asked of engines inside, also by tasks that are started there, is about one question: engines
    over several servers ask the one that has its prefix in the cache."""
    token = _question.set(question)
    try:
        yield
    finally:
        _question.reset(token)


def current_question() -> str:
    """Return the question of `asking_about`; empty outside of it."""
    return _question.get()


def is_one_request(chat: ChatFormat, params: SamplingParams) -> bool:
    """Tell whether `generate` asks the engine once."""
    return chat.thinking is None or (params.schema is None and chat.thinking.budget is None)


async def generate(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    adapter: str | None = None,
    messages: Sequence[Message] = (),
    chat: ChatFormat | None = None,
) -> Completion:
    """As `Engine.generate`; in several requests where the model may think, and there is a schema or a budget.

    The thought is sampled freely, up to the token that closes it, and the answer under the schema. A model that begins
    its thoughts by itself is first asked for one token: where that begins no thought, it answers at once. A thought
    that reaches its budget is closed in the template's words, which are `inserted`; so is what the template writes
    between the closing token and an answer in form. A thought that takes all of `max_tokens` is the completion.

    `chat`: the dialogue's format; default, the engine's own.
    """
    chat = chat or engine.format
    thinking = chat.thinking
    if thinking is None or is_one_request(chat, params):
        return await engine.generate(prompt, params, adapter, messages)
    ids: list[int] = []
    parts: list[Completion] = []
    streams = itertools.count()

    async def sample(end: int, schema: dict[str, Any] | str | None = None, stop: tuple[int, ...] = ()) -> Completion:
        """Go on, to at most `end` ids in all. Every request has random numbers of its own."""
        stop = (*params.stop_ids, *stop)
        own = replace(params, max_tokens=end - len(ids), seed=params.seed ^ next(streams), schema=schema, stop_ids=stop)
        parts.append(await engine.generate([*prompt, *ids], own, adapter, messages))
        ids.extend(parts[-1].ids)
        return parts[-1]

    def reply(inserted: tuple[int, int] = (0, 0), cut: bool = False) -> Completion:
        last, known = parts[-1], [value for part in parts for value in part.logprobs or ()]
        return replace(
            parts[0],
            ids=tuple(ids),
            text=chat.decode(ids[: len(ids) - len(last.ids)]) + last.text,
            finish_reason="length" if cut else last.finish_reason,
            logprobs=tuple(known) if len(known) == len(ids) else None,
            inserted=inserted,
        )

    if thinking.start is not None:
        first = await sample(1)
        if first.ids != (thinking.start,):
            if params.schema is not None:  # what was said is not in form
                ids.clear()
                parts.clear()
            elif first.finish_reason != "length" or params.max_tokens == 1:
                return reply()
            await sample(params.max_tokens, params.schema)
            return reply()
    budget = min(thinking.budget or params.max_tokens, params.max_tokens)
    if len(ids) < budget:
        thought = await sample(budget, stop=(thinking.end,))
        if ids[-1:] != [thinking.end] and thought.finish_reason != "length":
            return reply()
    closing = thinking.closing
    if ids[-1:] == [thinking.end]:
        closing = closing[closing.index(thinking.end) + 1 :] if params.schema is not None else ()
    if len(ids) + len(closing) >= params.max_tokens:
        return reply(cut=True)
    inserted = (len(ids), len(ids) + len(closing)) if closing else (0, 0)
    ids.extend(closing)
    await sample(params.max_tokens, params.schema)
    return reply(inserted)
