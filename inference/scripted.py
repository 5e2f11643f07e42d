"""A scripted engine: replies written beforehand, through the same protocol as a model. For tests and dry runs.

A script is a JSONL file of rules, tried in order; the first that matches gives the reply:

    {"match": "Question:", "prompt": "searcher", "reply": {"search_query": "harbour"}}
    {"match": "relevant?", "replies": ["yes", "no"]}      one of them, chosen by the call's seed
    {"match": "crash", "error": "the server is gone"}     raises EngineError
    {"default": "I do not know."}                         when nothing above matches

A reply is a text, or an object that is written as JSON. `match` is searched in the last user message (in the whole
prompt where a call has no messages), `prompt` in the whole prompt text. A rule may add `delay`, in seconds, and
`adapted`: true where it applies to adapters only, false where to the base model only.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from ratchet.core.config import ModelConfig, parse
from ratchet.core.errors import UserError
from ratchet.core.files import read_jsonl
from ratchet.core.records import content_key
from ratchet.inference.chat import ChatFormat
from ratchet.inference.chat_formats import open_chat_format
from ratchet.inference.completion import Completion, FinishReason, Message, SamplingParams
from ratchet.inference.engine import EngineError


def as_text(reply: Any) -> Any:
    """An object as JSON; whatever else as it is."""
    return json.dumps(reply, ensure_ascii=False) if isinstance(reply, Mapping) else reply


Text = Annotated[str, BeforeValidator(as_text)]


class Rule(BaseModel):
    """One line of a script."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    match: str = ""
    prompt: str = ""
    reply: Text | None = None
    replies: tuple[Text, ...] = ()
    error: str | None = None
    default: Text | None = None
    delay: float = 0.0
    adapted: bool | None = None

    @model_validator(mode="after")
    def _check_one_outcome(self) -> Rule:
        outcomes = [self.reply is not None, bool(self.replies), self.error is not None, self.default is not None]
        if sum(outcomes) != 1:
            raise ValueError("a rule has exactly one of reply, replies, error, default")
        return self

    def matches(self, last: str, prompt: str, adapted: bool) -> bool:
        if self.adapted is not None and self.adapted is not adapted:
            return False
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
    """The arguments of one call of the engine."""

    prompt: tuple[int, ...]
    params: SamplingParams
    adapter: str | None
    messages: tuple[Message, ...]


class ScriptedReply:
    """A reply with probabilities: pieces of text, the probability of each piece's tokens, and that of ending there."""

    def __init__(self, *pieces: tuple[str, float], end: float = 1.0) -> None:
        self.pieces, self.end = pieces, end


Reply = str | Mapping[str, Any] | ScriptedReply
"""A mapping is written as JSON."""
Replies = Callable[[str, SamplingParams, Sequence[Message]], Reply] | Sequence[Reply | Exception]


class ScriptedEngine:
    """`replies` is a function of (prompt text, params, messages), or a list that is used up in the order of calls.

    An exception in a list is raised in its turn. Replies are encoded like any text and end with the end-of-turn
    token, unless `max_tokens` or the context cuts them; the tokens of a plain text are certain. `calls` keeps the
    arguments of every call; `running` counts calls in flight, and `max_running` is their maximum.
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
        self.running = self.max_running = 0
        self._reply: Callable[[str, SamplingParams, Sequence[Message]], Reply] = (
            replies if callable(replies) else _in_order(list(replies))
        )
        self._rules: tuple[Rule, ...] = ()

    @classmethod
    def from_config(cls, model: ModelConfig) -> ScriptedEngine:
        if model.script is None:
            raise UserError("a model with engine 'scripted' needs `script`, a JSONL file of replies")
        path = Path(model.script)
        rules = tuple(parse(Rule, row, f"{path}:{line}") for line, row in read_jsonl(path, "rule"))
        chat = open_chat_format(model)
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
        self.max_running = max(self.max_running, self.running)
        try:
            reply, delay = self._reply_to(self.format.decode(prompt), params, messages, adapter is not None)
            if delay:
                await asyncio.sleep(delay)
        finally:
            self.running -= 1
        reply = reply if isinstance(reply, ScriptedReply) else ScriptedReply((as_text(reply), 1.0))
        tokens = [(i, math.log(p)) for text, p in reply.pieces for i in self.format.encode(text)]
        tokens.append((self.format.end_of_turn, math.log(reply.end)))
        text = "".join(text for text, _ in reply.pieces)
        finish: FinishReason = "stop"
        room = self.max_context - len(prompt)
        if len(tokens) > min(params.max_tokens, room):
            finish = "length" if params.max_tokens <= room else "context"
            tokens = tokens[: min(params.max_tokens, max(room, 0))]
            text = self.format.decode([i for i, _ in tokens])
        return Completion(
            ids=tuple(i for i, _ in tokens),
            text=text,
            finish_reason=finish,
            prompt_tokens=len(prompt),
            logprobs=tuple(logprob for _, logprob in tokens) if params.logprobs else None,
        )

    def _reply_to(
        self, prompt: str, params: SamplingParams, messages: Sequence[Message], adapted: bool
    ) -> tuple[Reply, float]:
        if not self._rules:
            return self._reply(prompt, params, messages), self.delay
        last = next((m["content"] for m in reversed(messages) if m["role"] == "user"), prompt)
        for rule in self._rules:
            if rule.matches(last, prompt, adapted):
                return rule.answer(params.seed), rule.delay
        raise EngineError(f"no rule of the script matches: {last[-200:]!r}")

    async def close(self) -> None:
        """Do nothing: no memory or connection is held."""


def _in_order(replies: list[Reply | Exception]) -> Callable[..., Reply]:
    remaining = iter(replies)

    def reply(*_: Any) -> Reply:
        reply = next(remaining, None)
        if reply is None:
            given = f"{len(replies)} repl{'y' if len(replies) == 1 else 'ies'}"
            raise EngineError(f"the script has only {given}, and this call asks for one more")
        if isinstance(reply, Exception):
            raise reply
        return reply

    return reply
