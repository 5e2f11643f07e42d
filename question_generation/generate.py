"""The run: attempt by attempt, all candidates of an attempt at once, each on disk before it is counted.

An attempt is a round over the questions that are still missing. Near copies are found after a round, in a fixed order,
so the outcome does not depend on which reply came first, nor on where a run was interrupted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ratchet.core.config import SPLITS, GenerationConfig, RewardsConfig, Split
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, read_segment
from ratchet.core.progress import Progress
from ratchet.core.records import Record
from ratchet.core.tasks import for_each
from ratchet.inference.engine import Engine
from ratchet.question_generation.candidate import Attempt, Candidate, Plan, make_candidate
from ratchet.question_generation.corpus import Corpus
from ratchet.question_generation.filters import AcceptedQuestions
from ratchet.rewards.judge import CallLog, Judge, JudgeError

TEMPERATURE = 0.7
"""Of the writer. The judge's is 0."""


async def generate(
    plan: Plan, corpus: Corpus, engine: Engine, folder: Path, concurrency: int
) -> tuple[Outcome, list[Candidate]]:
    """Make the missing candidates, `concurrency` at a time; returns what is accepted, and all candidates."""
    path, settings, wanted = folder / "candidates.jsonl", plan.settings, plan.questions()

    def open_judge(temperature: float) -> Judge:
        """A `Judge` that sends prompts to the model, logs every reply and retries through short outages."""
        how = RewardsConfig(judge=settings.model, temperature=temperature, max_tokens=settings.max_tokens)
        return Judge(engine, how, plan.seed, concurrency, lengthen=False)

    writer, judge = open_judge(TEMPERATURE), open_judge(0.0)
    with Segment(path) as segment:
        done = {candidate.key: candidate for candidate in read_segment(path, Candidate)}
        with CallLog(folder / "calls.jsonl", set(done)) as log:

            async def make(task: Attempt) -> Candidate:
                candidate = await make_candidate(task, plan, writer, judge, log)
                segment.append(candidate)
                log.forget(task.key)
                done[task.key] = candidate
                return candidate

            outcome = accept_candidates([])
            for attempt in range(settings.attempts):
                have = {(candidate.split, candidate.number) for candidate in outcome.accepted}
                tasks = [
                    plan.attempt(question, attempt, corpus)
                    for question in wanted
                    if (question.split, question.number) not in have
                ]
                if not tasks:
                    break
                missing = [task for task in tasks if task.key not in done]
                title = f"questions, attempt {attempt + 1} of {settings.attempts} at most"
                with Progress(title, len(tasks), len(tasks) - len(missing)) as progress:
                    await _make_all(missing, make, progress, concurrency)
                outcome = accept_candidates(c for c in done.values() if c.attempt <= attempt)
    # A candidate of an attempt that was made under more attempts than are now asked for is no part of this run.
    return outcome, [c for c in done.values() if c.attempt < settings.attempts]


async def _make_all(
    tasks: Sequence[Attempt], make: Callable[[Attempt], Awaitable[Candidate]], progress: Progress, concurrency: int
) -> None:
    """Make all candidates of one attempt. Raises UserError where an engine did not serve some of them."""
    failures: list[JudgeError] = []
    good = 0

    async def try_to_make(task: Attempt) -> None:
        nonlocal good
        try:
            good += not (await make(task)).dropped
            progress.advance(note=f"{good} good")
        except JudgeError as failure:
            failures.append(failure)

    await for_each(tasks, try_to_make, concurrency)
    if failures:
        raise UserError(
            f"{len(failures)} of {len(tasks)} candidates are unfinished, such as: {failures[0]}. Everything else is "
            "kept: run the same command again."
        )


class Outcome(Record):
    """Which candidates are accepted, and which are near copies."""

    accepted: tuple[Candidate, ...]
    copies: dict[str, str]
    """Key of a good candidate to that of the accepted question that it nearly copies."""


def accept_candidates(candidates: Iterable[Candidate]) -> Outcome:
    """Accept good candidates in order of attempt, split and number, whatever order they were made in.

    A question that nearly copies an accepted one is dropped, also where the two are in different splits.
    """
    accepted: dict[tuple[Split, int], Candidate] = {}
    copies: dict[str, str] = {}
    seen = AcceptedQuestions()
    for c in sorted(candidates, key=lambda c: (c.attempt, SPLITS.index(c.split), c.number)):
        if c.dropped or (c.split, c.number) in accepted:
            continue
        original = seen.copy_of(c.question)
        if original is None:
            accepted[c.split, c.number] = c
            seen.add(c.key, c.question)
        else:
            copies[c.key] = original
    order = sorted(accepted, key=lambda place: (SPLITS.index(place[0]), place[1]))
    return Outcome(accepted=tuple(accepted[place] for place in order), copies=copies)


def summarise(outcome: Outcome, candidates: Sequence[Candidate], settings: GenerationConfig) -> dict[str, Any]:
    """The numbers: per split, and why candidates were dropped."""
    splits = {}
    for split in SPLITS:
        asked = settings.wanted(split)
        got = sum(c.split == split for c in outcome.accepted)
        tried = sum(c.split == split for c in candidates)
        splits[split] = {"wanted": asked, "accepted": got, "missing": asked - got, "candidates": tried}
    dropped = Counter(c.dropped for c in candidates if c.dropped)
    dropped["near copy of another question"] = len(outcome.copies)
    return {
        "splits": splits,
        "dropped": {reason: count for reason, count in dropped.most_common() if count},
        "copies": outcome.copies,
    }


def summary_lines(report: dict[str, Any]) -> list[str]:
    """The account as text."""
    text = [
        f"{split}: {n['accepted']} of {n['wanted']} questions, from {n['candidates']} candidates"
        for split, n in report["splits"].items()
        if n["wanted"]
    ]
    if report["dropped"]:
        text += ["dropped: " + ", ".join(f"{count} {reason}" for reason, count in report["dropped"].items())]
    return text
