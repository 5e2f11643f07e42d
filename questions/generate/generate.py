"""The run: attempt by attempt, all candidates of an attempt at once, each on disk before it is counted.

An attempt is a round over the questions that are still missing. Near copies are found after a round, in a fixed order,
so the outcome does not depend on which reply came first, nor on where a run was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from inference.engine import Engine
from questions.generate.candidate import Candidate, make
from questions.generate.categories import Categories
from questions.generate.corpus import Corpus
from questions.generate.outcome import Outcome, decide
from questions.generate.plan import Task, Wanted, task
from questions.generate.settings import Settings
from ratchet.config import RewardsConfig
from ratchet.errors import UserError
from ratchet.files import Segment, read_segment
from ratchet.progress import Progress
from ratchet.tasks import together
from rewards.judge import CallLog, Judge, JudgeFailed


async def generate(
    wanted: Sequence[Wanted],
    corpus: Corpus,
    categories: Categories,
    settings: Settings,
    engines: Mapping[str, Engine],
    seed: int,
    folder: Path,
) -> tuple[Outcome, list[Candidate]]:
    """Make what is missing; returns what is accepted, and all candidates."""
    path = folder / "candidates.jsonl"
    with Segment(path) as segment:
        done = {c.key: c for c in read_segment(path, Candidate)}
        writer = _asker(settings.model, settings.temperature, settings, engines, seed)
        judge = _asker(settings.judged_by, settings.judge_temperature, settings, engines, seed)
        outcome = decide([], settings.near)
        for attempt in range(settings.attempts):
            have = {(c.split, c.number) for c in outcome.accepted}
            tasks = [task(w, attempt, corpus, settings, seed) for w in wanted if (w.split, w.number) not in have]
            if not tasks:
                break
            title = f"questions, attempt {attempt + 1} of {settings.attempts} at most"
            missing = [t for t in tasks if t.key not in done]
            with (
                CallLog(folder / "calls.jsonl", set(done)) as log,
                Progress(title, len(tasks), len(tasks) - len(missing)) as progress,
            ):
                await _round(missing, categories, settings, writer, judge, log, segment, done, progress)
            outcome = decide((c for c in done.values() if c.attempt <= attempt), settings.near)
    # A candidate of an attempt that was made under more attempts than are now asked for is no part of this run.
    return outcome, [c for c in done.values() if c.attempt < settings.attempts]


def _asker(model: str, temperature: float, settings: Settings, engines: Mapping[str, Engine], seed: int) -> Judge:
    """What puts prompts to a model: the rewards' judge, who logs every reply and waits out short outages."""
    how = RewardsConfig(judge=model, temperature=temperature, top_p=settings.top_p, max_tokens=settings.max_tokens)
    return Judge(engines[model], how, seed, settings.concurrency)


async def _round(
    tasks: Sequence[Task],
    categories: Categories,
    settings: Settings,
    writer: Judge,
    judge: Judge,
    log: CallLog,
    segment: Segment,
    done: dict[str, Candidate],
    progress: Progress,
) -> None:
    """Make all candidates of one attempt, `concurrency` at a time; they are added to `done`."""
    queue = iter(tasks)
    failures: list[JudgeFailed] = []
    good = 0

    async def worker() -> None:
        nonlocal good
        for one in queue:
            try:
                candidate = await make(one, categories, settings, writer, judge, log)
            except JudgeFailed as failure:
                failures.append(failure)
                continue
            segment.append(candidate)
            log.forget(one.key)
            done[one.key] = candidate
            good += not candidate.dropped
            progress.advance(note=f"{good} good")

    await together([worker() for _ in range(min(settings.concurrency, len(tasks)))])
    if failures:
        raise UserError(
            f"{len(failures)} of {len(tasks)} candidates are unfinished, such as: {failures[0]}. Everything else is "
            "kept: run the same command again."
        )
