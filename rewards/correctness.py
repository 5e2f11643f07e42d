"""Nugget correctness, from 0 to 1 (Salemi et al. 2025, arXiv 2506.10844, section 3.2 and algorithm 3).

Nuggets are extracted from the reference and kept on disk: by default for every judge run (appendix D.3 executes the
whole reward model five times), or once for all runs (`rewards.correctness.nuggets`). A question that has its own
nuggets is judged by those, and nothing is extracted. Each nugget of a run is scored from -1 to 2 against the response
in that run, and the run's value is the mean of (s + 1) / 3 over its readable verdicts; the score is the mean of the
runs. Where all runs share their nuggets, the mean is over nuggets first, so that a verdict that cannot be read lowers
neither its nugget's weight nor its score.

0 on the judge's scale is an abstention (figure 23), so an answer that says in words that it does not know has 1/3, and
by default so has a nugget that the answer leaves out (`rewards.correctness.left_out`). An empty answer has 0
(`rewards.reward.fixed_score`).
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
from ratchet.tasks import gather_or_cancel
from rewards.judge import CallLog, Judge, JudgeRequest
from rewards.prompts import (
    NUGGETS_VERSION,
    AspectVerdict,
    ExpectedAspects,
    expected_output,
    match_prompt,
    nuggets_prompt,
    replaced_digest,
)

POLL = 0.2
"""Seconds between two checks whether another process has extracted a question's nuggets."""


class NuggetSet(Record):
    """The nuggets that a judge extracted from one question's reference."""

    key: str
    """Content key of the question's text and reference, and of the judge run where each run has its own nuggets."""
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
        self._judge, self._temperature = judge, judge.settings.correctness.nugget_temperature
        replaced = replaced_digest(judge.prompts, ["nuggets.user"])
        drawn_by = (judge.engine.fingerprint, NUGGETS_VERSION, *filter(None, [replaced]))
        key = content_key(*drawn_by) if self._temperature is None else content_key(*drawn_by, self._temperature)
        self._folder, self._stem = folder, key[:12]
        self._segment = Segment(folder / f"{self._stem}-{writer}.jsonl")
        self._sizes: dict[Path, int] = {}
        self._known: dict[str, NuggetSet] = {}
        self._read_new_segments()
        self._extracting: dict[str, asyncio.Lock] = {}

    async def get(self, question: Question, reference: str, log: CallLog, run: int | None = None) -> NuggetSet:
        """The question's nuggets, of one judge run or of all, extracted if they are not known. Raises PromptTooLong and
        JudgeError."""
        key = content_key(question.text, reference) if run is None else content_key(question.text, reference, run)
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
            parts = ("nuggets", key, attempt)
            prompt = nuggets_prompt(question, reference, self._judge.prompts)
            ask = JudgeRequest(prompt, ExpectedAspects, parts, self._temperature)
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


Nuggets = tuple[Mapping[str, str], ...]


async def correctness(
    judge: Judge, store: NuggetStore, question: Question, trajectory: Trajectory, log: CallLog
) -> Score:
    """The mean of (s + 1) / 3 over the nuggets. Raises PromptTooLong and JudgeError.

    The caller handles trajectories with a `rewards.reward.fixed_score`.
    """
    name, expected, runs = "correctness", expected_output(question), range(judge.runs)
    # Lists and plain values alone in a verdict: what is read back from disk then equals what was written.
    verdicts: list[dict[str, Any]] = []
    unparsed = 0
    by_run: dict[int, Nuggets] = {}
    if question.nuggets:
        own: Nuggets = tuple({"aspect": nugget} for nugget in question.nuggets)
        by_run, shared = dict.fromkeys(runs, own), True
        verdicts.append(_nuggets_record("question", own))
    else:
        shared = judge.settings.correctness.nuggets == "once"
        drawn = await gather_or_cancel(
            [store.get(question, expected, log, run) for run in ([None] if shared else list(runs))]
        )
        for run, found in zip([None] if shared else runs, drawn, strict=True):
            if not found.nuggets:
                verdicts += found.verdicts
                unparsed += found.unparsed
                continue
            by_run |= dict.fromkeys(runs if run is None else (run,), found.nuggets)
            verdicts.append(_nuggets_record("reference", found.nuggets, run))
        if not by_run:
            reason = f"the judge extracted no nuggets from the reference in {len(verdicts)} attempts"
            return Score(
                trajectory=trajectory.key,
                name=name,
                value=None,
                reason=f"{reason} ({unparsed} unparsed)",
                verdicts=tuple(verdicts),
                unparsed=unparsed,
            )

    # Runs of one nugget follow each other: where they are shared, equal prompts need one prefill.
    order = sorted((number, run) for run, nuggets in by_run.items() for number in range(len(nuggets)))
    left_out = judge.settings.correctness.left_out
    asks = [
        JudgeRequest(
            match_prompt(question, expected, trajectory.answer, by_run[run][number], left_out, judge.prompts),
            AspectVerdict,
            ("nugget", trajectory.key, number, run),
        )
        for number, run in order
    ]
    replies = await judge.ask_all(asks, trajectory.key, log)
    groups: dict[int, list[int]] = {}
    for (number, run), reply in zip(order, replies, strict=True):
        score = None if reply.value is None else reply.value.score
        verdicts.append(reply.record(part="nugget", nugget=number, run=run, score=score))
        if score is not None:
            groups.setdefault(number if shared else run, []).append(score)
    unparsed += (unread := sum(reply.value is None for reply in replies))
    values = [(fmean(scores) + 1) / 3 for scores in groups.values()]
    return Score(
        trajectory=trajectory.key,
        name=name,
        value=fmean(values) if values else None,
        reason="" if values else f"no readable verdict: {unread} of {len(replies)} unparsed",
        verdicts=tuple(verdicts),
        unparsed=unparsed,
    )


def _nuggets_record(source: str, nuggets: Nuggets, run: int | None = None) -> dict[str, Any]:
    """The nuggets of a run, or those that all runs share, as stored in a Score's verdicts."""
    of_run = {} if run is None else {"run": run}
    return {"part": "nuggets", "source": source, **of_run, "nuggets": [dict(nugget) for nugget in nuggets]}
