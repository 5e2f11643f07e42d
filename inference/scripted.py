"""A scripted engine: replies written beforehand, through the same protocol as a model. For tests and dry runs.

A script is a JSONL file of rules, tried in order; the first that matches speaks:

    {"match": "Question:", "prompt": "searcher", "reply": "{\\"search_query\\": \\"harbour\\"}"}
    {"match": "relevant?", "replies": ["yes", "no"]}      one of them, chosen by the call's seed
    {"match": "crash", "error": "the server is gone"}     raises EngineError
    {"default": "I do not know."}                         when nothing above matches

`match` is looked for in the last user message (in the whole prompt where a call has no messages), `prompt` in
the whole prompt text. A rule may add `delay`, in seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from inference.chat import ChatFormat, load_tokenizer
from inference.engine import Completion, EngineError, FinishReason, Message, SamplingParams
from ratchet.config import ModelConfig, parse
from ratchet.errors import UserError
from ratchet.files import read_jsonl
from ratchet.records import content_key


class Rule(BaseModel):
    """One line of a script."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    match: str = ""
    prompt: str = ""
    reply: str | None = None
    replies: tuple[str, ...] = ()
    error: str | None = None
    default: str | None = None
    delay: float = 0.0

    @model_validator(mode="after")
    def _says_one_thing(self) -> Rule:
        said = [self.reply is not None, bool(self.replies), self.error is not None, self.default is not None]
        if sum(said) != 1:
            raise ValueError("a rule has exactly one of reply, replies, error, default")
        return self

    def holds(self, last: str, prompt: str) -> bool:
        return self.default is not None or (self.match in last and self.prompt in prompt)

    def answer(self, seed: int) -> str:
        """Raises EngineError for an error rule."""
        if self.error is not None:
            raise EngineError(self.error)
        if self.replies:
            return self.replies[int(content_key(seed)[:16], 16) % len(self.replies)]
        return self.reply if self.reply is not None else self.default or ""


@dataclass(frozen=True)
class Call:
    """What one call of the engine was given."""

    prompt: tuple[int, ...]
    params: SamplingParams
    adapter: str | None
    messages: tuple[Message, ...]


Replies = Callable[[str, SamplingParams, Sequence[Message]], str] | Sequence[str | Exception]


class ScriptedEngine:
    """`replies` is a function of (prompt text, params, messages), or a list that is used up in the order of calls.

    An exception in a list is raised in its turn. Replies are encoded like any text and end with the end-of-turn
    token, unless `max_tokens` or the context cuts them. `calls` keeps what was asked, `running` how many calls
    are in flight and `widest` the most there were.
    """

    def __init__(
        self,
        chat: ChatFormat,
        replies: Replies,
        max_context: int = 32_000,
        delay: float = 0.0,
        fingerprint: str = "scripted",
    ) -> None:
        self.format, self.max_context, self.fingerprint = chat, max_context, fingerprint
        self.delay = delay
        self.calls: list[Call] = []
        self.running = self.widest = 0
        self._reply: Callable[[str, SamplingParams, Sequence[Message]], str] = (
            replies if callable(replies) else _in_order(list(replies))
        )
        self._rules: tuple[Rule, ...] = ()

    @classmethod
    def from_config(cls, model: ModelConfig) -> ScriptedEngine:
        """The engine of a config: tokens of `model.path`, replies of the script file `model.script`."""
        if model.script is None:
            raise UserError("a model with engine 'scripted' needs `script`, a JSONL file of replies")
        path = Path(model.script)
        rules = tuple(parse(Rule, row, f"{path}:{line}") for line, row in read_jsonl(path, "rule"))
        chat = ChatFormat.from_tokenizer(load_tokenizer(model.path, model.revision), model.path)
        engine = cls(chat, [], model.max_context, fingerprint=content_key(chat.digest, rules))
        engine._rules = rules
        return engine

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        adapter: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Completion:
        self.calls.append(Call(tuple(prompt), params, adapter, tuple(messages)))
        self.running += 1
        self.widest = max(self.widest, self.running)
        try:
            text, delay = self._text(self.format.decode(prompt), params, messages)
            if delay:
                await asyncio.sleep(delay)
        finally:
            self.running -= 1
        ids = (*self.format.encode(text), self.format.end_of_turn)
        finish: FinishReason = "stop"
        room = self.max_context - len(prompt)
        if len(ids) > min(params.max_tokens, room):
            finish = "length" if params.max_tokens <= room else "context"
            ids = ids[: min(params.max_tokens, max(room, 0))]
            text = self.format.decode(ids)
        return Completion(ids=ids, text=text, finish_reason=finish, prompt_tokens=len(prompt))

    def _text(self, prompt: str, params: SamplingParams, messages: Sequence[Message]) -> tuple[str, float]:
        if not self._rules:
            return self._reply(prompt, params, messages), self.delay
        last = next((m["content"] for m in reversed(messages) if m["role"] == "user"), prompt)
        for rule in self._rules:
            if rule.holds(last, prompt):
                return rule.answer(params.seed), rule.delay
        raise EngineError(f"no rule of the script matches: {last[-200:]!r}")

    async def close(self) -> None:
        """Nothing to give back."""


def _in_order(replies: list[str | Exception]) -> Callable[..., str]:
    """The replies one after another; more calls than replies is an EngineError."""
    left = iter(replies)

    def reply(*_: Any) -> str:
        said = next(left, None)
        if said is None:
            raise EngineError(f"the script has only {len(replies)} replies")
        if isinstance(said, Exception):
            raise said
        return said

    return reply
