"""The nuggets of a reference: the smallest facts of an answer that a judge extracts, kept on disk.

Salemi et al. 2025 (arXiv 2506.10844), figure 22; the words of the prompt are ours.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Any

from ratchet.agents.core.prompts import Prompts
from ratchet.core.files import Segment, segment_files
from ratchet.core.locks import Lock
from ratchet.core.records import Question, Record, content_key
from ratchet.rewards.judge import CallLog, Judge, JudgeRequest, Reply
from ratchet.rewards.prompts import fill, replaced_texts, template, version_of

NUGGETS = """You judge answers, fairly and strictly. Below is a question and the output that is expected for it. Break \
the expected output down into its nuggets: the smallest facts in it that each say one thing towards answering the \
question. Leave no fact out, name none twice, and add none that the expected output does not state.

Reply with one JSON object that has the field "expected_output_aspects", a list with one object per nugget:
- "aspect": the fact, as a short sentence that can be understood alone.
- "explanation": in a few words, why it matters to the question.
- "evidence": the words of the expected output that state it."""
VERSION = version_of(NUGGETS)
PROMPTS: Prompts = {
    "nuggets.user": template(NUGGETS, ("question", "expected_output"), "`correctness`; figure 22"),
}


class Aspect(Reply):
    """One nugget."""

    aspect: str
    explanation: str
    evidence: str


class ExpectedAspects(Reply):
    """Figure 22: the nuggets of a reference answer."""

    expected_output_aspects: list[Aspect]


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

    def __init__(self, folder: Path, judge: Judge, prompts: Prompts, writer: str) -> None:
        """`prompts`: the judge's, by slot; `writer`: what tells this store's segment from those of others."""
        self._judge, self._temperature = judge, judge.settings.extraction_temperature
        self._prompts = prompts
        replaced = replaced_texts(prompts, PROMPTS)
        drawn_by = (judge.engine.fingerprint, VERSION, *filter(None, [replaced]))
        key = content_key(*drawn_by) if self._temperature is None else content_key(*drawn_by, self._temperature)
        self._folder, self._stem = folder, key[:12]
        self._segment = Segment(folder / f"{self._stem}-{writer}.jsonl")
        self._sizes: dict[Path, int] = {}
        self._known: dict[str, NuggetSet] = {}
        self._read_new_segments()
        self._extracting: dict[str, asyncio.Lock] = {}

    async def get(self, question: Question, reference: str, log: CallLog, run: int | None = None) -> NuggetSet:
        """The question's nuggets, of one judge run or of all. Raises PromptTooLong and JudgeError."""
        key = content_key(question.text, reference) if run is None else content_key(question.text, reference, run)
        async with self._extracting.setdefault(key, asyncio.Lock()):
            if key in self._known:
                return self._known[key]
            lock = Lock(self._folder / f".{self._stem}-{key[:16]}.lock", f"the nuggets of {question.id}")
            while lock.try_acquire():  # noqa: ASYNC110 - another process, which sets no event of ours
                await asyncio.sleep(POLL)
            try:
                self._read_new_segments()  # what another process extracted meanwhile
                if key not in self._known:
                    self._known[key] = await self._extract(key, question, reference, log)
            finally:
                lock.release()
            return self._known[key]

    def _read_new_segments(self) -> None:
        for file in segment_files(self._folder):
            if file.path.name.startswith(f"{self._stem}-") and (size := file.size) != self._sizes.get(file.path):
                self._sizes[file.path] = size
                for nuggets in (line.parse(data, NuggetSet) for line, data in file.lines()):
                    self._known.setdefault(nuggets.key, nuggets)

    async def _extract(self, key: str, question: Question, reference: str, log: CallLog) -> NuggetSet:
        """Try up to `runs` seeds. A set without nuggets is remembered for now, but not on disk."""
        verdicts: list[dict[str, Any]] = []
        unparsed = 0
        for attempt in range(self._judge.settings.runs.most):
            parts = ("nuggets", key, attempt)
            prompt = fill(self._prompts, "nuggets.user", question, expected_output=reference)
            ask = JudgeRequest(prompt, ExpectedAspects, parts, self._temperature)
            [verdict] = await self._judge.ask_all([ask], f"nuggets of {key}", log)
            verdicts.append(verdict.stored(part="nuggets", run=attempt))
            reply = verdict.read(ExpectedAspects)
            unparsed += reply is None
            if reply is not None and reply.expected_output_aspects:
                drawn = NuggetSet(
                    key=key,
                    question_id=question.id,
                    nuggets=tuple(aspect.model_dump() for aspect in reply.expected_output_aspects),
                    verdicts=tuple(verdicts),
                    unparsed=unparsed,
                )
                self._segment.append(drawn)
                return drawn
        return NuggetSet(key=key, question_id=question.id, nuggets=(), verdicts=tuple(verdicts), unparsed=unparsed)

    def __enter__(self) -> NuggetStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._segment.close()
