"""A completion under a schema of a model that thinks first: the schema holds from the end of the thought on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inference.completion import Completion, Message, SamplingParams
from inference.engine import Engine


async def generate(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    adapter: str | None = None,
    messages: Sequence[Message] = (),
) -> Completion:
    """As `Engine.generate`. Where the prompt has begun a thought and there is a schema, in two requests.

    The first is the thought, free up to the token that closes it, and the second is the rest, under the schema. A
    thought that takes all of `max_tokens` is the completion.
    """
    chat = engine.format
    if params.schema is None or not chat.reply_opening or chat.thought_end is None:
        return await engine.generate(prompt, params, adapter, messages)
    free = replace(params, schema=None, stop_ids=(chat.thought_end,))
    thought = await engine.generate(prompt, free, adapter, messages)
    left = params.max_tokens - len(thought.ids)
    if thought.ids[-1:] != (chat.thought_end,) or left < 1:
        return thought if left else replace(thought, finish_reason="length")
    rest = await engine.generate([*prompt, *thought.ids], replace(params, max_tokens=left), adapter, messages)
    both = None if thought.logprobs is None or rest.logprobs is None else thought.logprobs + rest.logprobs
    return replace(
        thought,
        ids=thought.ids + rest.ids,
        text=chat.decode(thought.ids) + rest.text,
        finish_reason=rest.finish_reason,
        logprobs=both,
        retokenised=thought.retokenised or rest.retokenised,
    )
