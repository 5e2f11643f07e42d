"""A language model as judge: one JSON reply per prompt, and no prompt is sent twice.

Every reply is on disk in a call log before it is used, so a stage that was interrupted resumes without repeating a
call. Replies that arrive while others are flushed share the next flush, so a kill costs the calls in flight and the
replies of the last few milliseconds, which no score has used. A call that the engine could not serve is not an answer:
it is not logged, and its score stays unfinished.

A reply may have `rewards.max_tokens`, or what the prompt leaves of the judge's context. One that is cut off there is
asked for again, once, with everything that the context has, where that is more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ratchet.agents.core.output import JsonObject, Malformed, all_outputs, grammar, is_explanation, read_output
from ratchet.core.config import RewardsConfig
from ratchet.core.config.system import TOP_P
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, SegmentFile
from ratchet.core.records import Record, content_key
from ratchet.core.tasks import gather_or_cancel
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import Completion, SamplingParams
from ratchet.inference.engine import Engine, EngineError, SeveralEngine, generate, is_one_request
from ratchet.rewards.reward import JudgeError, PromptTooLong

MIN_REPLY_TOKENS = 512
"""New tokens that a prompt has to leave room for, unless `rewards.max_tokens` is less: the claims of a short answer."""
CUT_OFF = ("length", "context")
"""Finish reasons of a reply that was cut off."""
R = TypeVar("R", bound=BaseModel)


class Reply(JsonObject):
    """The base of the judge's JSON replies."""

    # Strict: a score of 1.5 is an unreadable verdict, not a hint at one. What else is tolerated: agents/core/output.py.
    model_config = ConfigDict(strict=True)


class AspectVerdict(Reply):
    """Figure 23: one nugget against a response."""

    rationale: str
    score: Literal[-1, 0, 1, 2]


class Verdict(Record):
    """One reply of the judge: a line of the call log until the score that needs it is stored, then a part of that."""

    owner: str
    """The score that needs the reply: a trajectory's key, or a nugget set's."""
    key: str
    text: str
    finish_reason: str
    asked_again: bool = False
    """True: an earlier reply was cut off, and this one had more room."""
    tokens: tuple[int, int, int] | None = Field(None, exclude_if=lambda tokens: tokens is None)
    """Tokens of the prompt, those of them that came out of the prefix cache, and new ones, of both replies where it was
    asked again; None in logs of earlier versions."""

    def read(self, kind: type[R]) -> R | None:
        """The reply as an object; None where the text is not JSON of this form."""
        return read_reply(self.text, kind)

    def stored(self, **about: Any) -> dict[str, Any]:
        """The raw reply, as a Score has it among its verdicts."""
        again = {"asked_again": True} if self.asked_again else {}
        counted = {"tokens": list(self.tokens)} if self.tokens else {}
        return {**about, "text": self.text, "finish_reason": self.finish_reason, **again, **counted}


class CallLog:
    """The replies to scores that are not finished yet, written durably. `finished` are owners whose score is stored;
    `others`: files of more replies, a fork's source's too.

    One event loop uses it. A thread writes, many replies at a time: a flush takes milliseconds on a local disk and tens
    of them on a network's, and hundreds of requests wait for this loop.
    """

    def __init__(self, path: Path, finished: Collection[str], others: Sequence[SegmentFile] = ()) -> None:
        self._segment = Segment(path)
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._waiting: deque[tuple[Verdict, Future[None]]] = deque()
        self._calls: dict[str, dict[str, Verdict]] = {}
        for line, data in chain.from_iterable(file.lines() for file in (*others, SegmentFile(path))):
            call = line.parse(data, Verdict)
            if call.owner not in finished:
                self._calls.setdefault(call.owner, {})[call.key] = call

    def get(self, owner: str, key: str) -> Verdict | None:
        return self._calls.get(owner, {}).get(key)

    async def add(self, call: Verdict) -> None:
        """Return when the reply is on disk. Raises UserError where it cannot be written."""
        written: Future[None] = Future()
        self._waiting.append((call, written))
        self._writer.submit(self._write)
        await asyncio.shield(asyncio.wrap_future(written))  # who is cancelled does not stop the others' writing
        self._calls.setdefault(call.owner, {})[call.key] = call

    def _write(self) -> None:
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        error: Exception | None = None
        try:
            if batch:
                self._segment.extend([call for call, _ in batch])
        except (UserError, ValueError) as raised:
            error = raised
        for _, written in batch:
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(error)

    def forget(self, owner: str) -> None:
        self._calls.pop(owner, None)

    def __enter__(self) -> CallLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._writer.shutdown()  # replies that came just before the end are written: the next run need not ask again
        self._segment.close()


@dataclass(frozen=True)
class JudgeRequest:
    """One call to make: the prompt, the reply's shape, and the parts that identify the call and give its seed."""

    prompt: str
    reply: type[BaseModel]
    parts: tuple[str | int, ...]
    temperature: float | None = None
    """Default: the judge's."""


def cut_off(verdicts: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Count the stored verdicts that are cut off, and those that were before they were asked for again."""
    ends = [(verdict.get("finish_reason") in CUT_OFF, bool(verdict.get("asked_again"))) for verdict in verdicts]
    return sum(cut for cut, _ in ends), sum(again and not cut for cut, again in ends)


class Judge:
    """Puts prompts to an engine, `concurrency` at a time."""

    def __init__(
        self, engine: Engine, settings: RewardsConfig, seed: int, concurrency: int, lengthen: bool = True
    ) -> None:
        """`lengthen`: ask again for a reply that was cut off at `settings.max_tokens`."""
        self.engine, self.settings, self.seed, self._lengthen = engine, settings, seed, lengthen
        self._slots = asyncio.Semaphore(concurrency)
        self._failed_in_a_row = 0
        self._last_error = ""
        # Twice the calls in flight: a short outage does not reach it, a dead server does.
        self._give_up_after = max(20, 2 * concurrency)

    def check_fit(self, prompt: str) -> Dialogue:
        """The dialogue of a prompt. Raises PromptTooLong where it does not fit the judge's context."""
        dialogue = Dialogue("judge", self.settings.judge, self.engine.format, trainable=False)
        dialogue.user(prompt)
        room, context = min(self.settings.max_tokens, MIN_REPLY_TOKENS), self.engine.max_context
        if dialogue.tokens + room > context:
            raise PromptTooLong(
                f"the judge's prompt of {dialogue.tokens:,} tokens and {room:,} for its reply do not fit its context "
                f"of {context:,} (models.{self.settings.judge}.max_context)"
            )
        return dialogue

    async def ask_all(self, requests: Sequence[JudgeRequest], owner: str, log: CallLog) -> list[Verdict]:
        """The verdicts, in order. Raises PromptTooLong, and JudgeError when all are done and some were not served.

        Requests with the same prompt are one where the engine takes several completions of a prompt.
        """
        failures: list[EngineError] = []
        keys = [self._key(request) for request in requests]
        missing: dict[Any, list[tuple[str, JudgeRequest]]] = {}
        for key, request in zip(keys, requests, strict=True):
            if log.get(owner, key) is None:
                same = (request.prompt, request.reply, request.temperature)
                missing.setdefault(same, []).append((key, request))

        async def ask(calls: Sequence[tuple[str, JudgeRequest]]) -> None:
            try:
                dialogue, params = self._prepare(calls[0][1])
                takes_several = isinstance(self.engine, SeveralEngine) and is_one_request(self.engine.format, params)
                given = list[Completion]()
                if takes_several or len(calls) == 1:
                    given = await self._generate(dialogue, params, len(calls))
            except EngineError as error:
                failures.extend([error] * len(calls))
                return
            told = zip(calls, given, strict=False)
            done = [self._finish(owner, key, dialogue, params, completion, log) for (key, _), completion in told]
            await gather_or_cancel([*done, *(ask([call]) for call in calls[len(given) :])])

        await gather_or_cancel([ask(calls) for calls in missing.values()])
        if failures:
            raise JudgeError(f"{len(failures)} of {len(requests)} judge calls failed, such as: {failures[0]}")
        return [verdict for key in keys if (verdict := log.get(owner, key)) is not None]

    def _key(self, request: JudgeRequest) -> str:
        own = () if request.temperature is None else (request.temperature,)
        return content_key(self.engine.fingerprint, request.prompt, request.parts, self.seed, *own)

    def _prepare(self, request: JudgeRequest) -> tuple[Dialogue, SamplingParams]:
        """Raises PromptTooLong."""
        dialogue, schema = self.check_fit(request.prompt), None
        if self.settings.constrained:
            schema = grammar(request.reply, self.settings.max_tokens)
            schema = schema if self.settings.verdicts == "reason_first" else score_first(schema)
        return dialogue, SamplingParams(
            temperature=self.settings.temperature if request.temperature is None else request.temperature,
            top_p=TOP_P,
            max_tokens=min(self.settings.max_tokens, self.engine.max_context - dialogue.tokens),
            seed=int(content_key("judge", self.seed, request.parts)[:8], 16) >> 1,
            schema=schema,
        )

    async def _finish(
        self, owner: str, key: str, dialogue: Dialogue, params: SamplingParams, completion: Completion, log: CallLog
    ) -> None:
        """Log a reply, asked for again where it was cut off."""
        room, first = self.engine.max_context - dialogue.tokens, completion
        again = completion.finish_reason == "length" and params.max_tokens < room and self._lengthen
        if again:
            # A service may allow fewer new tokens than its context has, or be too slow: then it stays cut off.
            with suppress(EngineError):
                [completion] = await self._generate(dialogue, replace(params, max_tokens=room))
        call = Verdict(
            owner=owner,
            key=key,
            text=self.engine.format.reply_opening + completion.text,
            finish_reason=completion.finish_reason,
            asked_again=again,
            tokens=_tokens({id(reply): reply for reply in (first, completion)}.values()),
        )
        await log.add(call)

    async def _generate(self, dialogue: Dialogue, params: SamplingParams, n: int = 1) -> list[Completion]:
        """At most `n` completions, in one request. Raises EngineError; UserError after too many failures in a row, when
        the judge must be dead."""
        async with self._slots:
            if self._failed_in_a_row >= self._give_up_after:
                raise UserError(
                    f"the judge ({self.settings.judge}) failed {self._failed_in_a_row} times in a row, last with: "
                    f"{self._last_error}. Its earlier replies are kept; fix it and run the same command again."
                )
            try:
                if n > 1 and isinstance(self.engine, SeveralEngine):
                    given = await self.engine.generate_several(dialogue.ids, params, n, messages=dialogue.messages)
                    given[1:] = [replace(other, cached_tokens=other.prompt_tokens) for other in given[1:]]
                else:
                    given = [await generate(self.engine, dialogue.ids, params, messages=dialogue.messages)]
                if any(completion.finish_reason == "timeout" for completion in given):
                    raise EngineError("the request took longer than its limit (models.*.timeout)")
            except EngineError as error:
                self._failed_in_a_row += 1
                self._last_error = str(error)
                raise
            self._failed_in_a_row = 0
            return given


def _tokens(replies: Iterable[Completion]) -> tuple[int, int, int]:
    counts = [(reply.prompt_tokens, reply.cached_tokens, reply.new_tokens) for reply in replies]
    prompt, cached, new = map(sum, zip(*counts, strict=True))
    return prompt, cached, new


def read_reply(text: str, kind: type[R]) -> R | None:
    """The last complete object of the reply, thoughts left out; None where it is not readable, or where another object
    of this form differs in more than its reasons."""
    try:
        reply: R = read_output(text, kind).value
    except Malformed:
        return None
    said = _without_reasons(reply.model_dump())
    if any(_without_reasons(other.model_dump()) != said for other in all_outputs(text, kind)):
        return None
    return reply


def _without_reasons(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_reasons(inner) for name, inner in value.items() if not is_explanation(name)}
    return [_without_reasons(inner) for inner in value] if isinstance(value, list) else value


def score_first(schema: Any) -> Any:
    """A JSON schema in which every score comes before the reason for it (`rewards.verdicts`)."""
    if isinstance(schema, list):
        return [score_first(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    names = list(schema)
    if {"score", "rationale"} <= {*names}:
        names.remove("score")
        names.insert(names.index("rationale"), "score")
    return {name: score_first(schema[name]) for name in names}
