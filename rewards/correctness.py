"""Nugget correctness, from 0 to 1 (Salemi et al. 2025, arXiv 2506.10844, section 3.2 and algorithm 3).

Nuggets are extracted from the reference once per question and kept on disk; a question that has its own nuggets is
judged by those, and nothing is extracted. Each nugget is scored from -1 to 2 against the response, once per run. The
value is the mean over nuggets of (s + 1) / 3, where s is a nugget's mean over its readable verdicts: a verdict that
cannot be read lowers neither its nugget's weight nor its score.

0 on the judge's scale is an abstention (figure 23), so an answer that says in words that it does not know has 1/3. An
empty answer has 0 (`rewards.reward.fixed_score`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any

from ratchet.files import Segment, read_segment
from ratchet.lease import Lease
from ratchet.records import Question, Record, Score, Trajectory, content_key
from rewards.judge import CallLog, Judge, JudgeRequest
from rewards.prompts import (
    NUGGETS_VERSION,
    AspectVerdict,
    ExpectedAspects,
    expected_output,
    match_prompt,
    nuggets_prompt,
)

POLL = 0.2
"""Seconds between two checks whether another process has extracted a question's nuggets."""


class NuggetSet(Record):
    """The nuggets that a judge extracted from one question's reference."""

    key: str
    """Content key of the question's text and reference."""
    question_id: str
    nuggets: tuple[dict[str, str], ...]
    """Aspect, explanation and evidence of each; empty where the judge extracted none."""
    verdicts: tuple[dict[str, Any], ...]
    unparsed: int = 0


class NuggetStore:
    """Nuggets that one judge extracted with one prompt, shared by every stage and round of a run.

    Each scoring folder appends to a segment of its own and reads all of them, so that any number of processes may
    score at once. One of them extracts a question's nuggets, and the others wait for it: answers that are compared are
    judged by the same nuggets.
    """

    def __init__(self, folder: Path, judge: Judge, writer: str) -> None:
        self._judge = judge
        self._folder, self._stem = folder, content_key(judge.engine.fingerprint, NUGGETS_VERSION)[:12]
        self._segment = Segment(folder / f"{self._stem}-{writer}.jsonl")
        self._sizes: dict[Path, int] = {}
        self._known: dict[str, NuggetSet] = {}
        self._read_new_segments()
        self._extracting: dict[str, asyncio.Lock] = {}

    async def get(self, question: Question, reference: str, log: CallLog) -> NuggetSet:
        """The question's nuggets, extracted if they are not known. Raises PromptTooLong and JudgeError."""
        key = content_key(question.text, reference)
        async with self._extracting.setdefault(key, asyncio.Lock()):
            if key in self._known:
                return self._known[key]
            lease = Lease(self._folder / f".{self._stem}-{key[:16]}.lease", f"the nuggets of {question.id}")
            while lease.try_acquire():  # noqa: ASYNC110 - another process, which sets no event of ours
                await asyncio.sleep(POLL)
            try:
                self._read_new_segments()  # what another process extracted meanwhile
                if key not in self._known:
                    self._known[key] = await self._extract(key, question, reference, log)
            finally:
                lease.release()
            return self._known[key]

    def _read_new_segments(self) -> None:
        """Read the segments that have grown."""
        for path in sorted(self._folder.glob(f"{self._stem}-*.jsonl")):
            if (size := path.stat().st_size) != self._sizes.get(path):
                self._sizes[path] = size
                for found in read_segment(path, NuggetSet):
                    self._known.setdefault(found.key, found)

    async def _extract(self, key: str, question: Question, reference: str, log: CallLog) -> NuggetSet:
        """Try up to `runs` seeds. A set without nuggets is remembered for now, but not on disk."""
        verdicts: list[dict[str, Any]] = []
        unparsed = 0
        for attempt in range(self._judge.runs):
            ask = JudgeRequest(nuggets_prompt(question, reference), ExpectedAspects, ("nuggets", key, attempt))
            [verdict] = await self._judge.ask_all([ask], f"nuggets of {key}", log)
            verdicts.append(verdict.record(part="nuggets", run=attempt))
            unparsed += verdict.value is None
            if verdict.value is not None and verdict.value.expected_output_aspects:
                found = NuggetSet(
                    key=key,
                    question_id=question.id,
                    nuggets=tuple(aspect.model_dump() for aspect in verdict.value.expected_output_aspects),
                    verdicts=tuple(verdicts),
                    unparsed=unparsed,
                )
                self._segment.append(found)
                return found
        return NuggetSet(key=key, question_id=question.id, nuggets=(), verdicts=tuple(verdicts), unparsed=unparsed)

    def __enter__(self) -> NuggetStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._segment.close()


async def correctness(
    judge: Judge, store: NuggetStore, question: Question, trajectory: Trajectory, log: CallLog
) -> Score:
    """The mean of (s + 1) / 3 over the nuggets. Raises PromptTooLong and JudgeError.

    The caller handles trajectories with a `rewards.reward.fixed_score`.
    """

    def null(reason: str, **fields: Any) -> Score:
        return Score(trajectory=trajectory.key, name="correctness", value=None, reason=reason, **fields)

    expected = expected_output(question)
    if question.nuggets:
        nuggets: tuple[Mapping[str, str], ...] = tuple({"aspect": nugget} for nugget in question.nuggets)
        source = "question"
    else:
        extracted = await store.get(question, expected, log)
        if not extracted.nuggets:
            reason = f"the judge extracted no nuggets from the reference in {len(extracted.verdicts)} attempts"
            return null(
                f"{reason} ({extracted.unparsed} unparsed)", verdicts=extracted.verdicts, unparsed=extracted.unparsed
            )
        nuggets, source = extracted.nuggets, "reference"

    # Runs of one nugget follow each other: equal prompts, one prefill.
    order = [(number, run) for number in range(len(nuggets)) for run in range(judge.runs)]
    asks = [
        JudgeRequest(
            match_prompt(question, expected, trajectory.answer, nuggets[number]),
            AspectVerdict,
            ("nugget", trajectory.key, number, run),
        )
        for number, run in order
    ]
    replies = await judge.ask_all(asks, trajectory.key, log)
    scores: list[list[int]] = [[] for _ in nuggets]
    # Lists and plain values alone in a verdict: what is read back from disk then equals what was written.
    verdicts: list[dict[str, Any]] = [
        {"part": "nuggets", "source": source, "nuggets": [dict(nugget) for nugget in nuggets]}
    ]
    for (number, run), reply in zip(order, replies, strict=True):
        score = None if reply.value is None else reply.value.score
        verdicts.append(reply.record(part="nugget", nugget=number, run=run, score=score))
        if score is not None:
            scores[number].append(score)
    unparsed = sum(reply.value is None for reply in replies)
    readable = [(fmean(found) + 1) / 3 for found in scores if found]
    if not readable:
        return null(f"no readable verdict: {unparsed} of {unparsed} unparsed", verdicts=verdicts, unparsed=unparsed)
    return Score(
        trajectory=trajectory.key,
        name="correctness",
        value=fmean(readable),
        verdicts=tuple(verdicts),
        unparsed=unparsed,
    )
