"""A completion of a model that thinks first: a schema holds from the end of the thought on, and a budget ends it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ratchet.inference.chat import ChatFormat
from ratchet.inference.completion import Completion, Message, SamplingParams
from ratchet.inference.engine import Engine


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
    if thinking is None or (params.schema is None and thinking.budget is None):
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
