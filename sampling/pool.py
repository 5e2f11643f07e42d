"""The sampling pool: any number of trajectories in flight, each at its own step.

There is no batch to wait for: a trajectory that ends is written and the next one starts, so the engine never idles
while work is left. Each trajectory has a content key; one that is on disk under its key is never sampled again, and
anything that would change the outcome (question, system, models, adapter, index, temperatures, seed) changes the key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from agents.episode import Setting, run_episode
from agents.systems import System, load_system
from inference.adapters import adapter_digest
from inference.engine import Engine
from inference.engines import close_engines, open_engines
from ratchet.config import Config, SystemConfig
from ratchet.errors import UserError
from ratchet.files import Segment, read_segments, write_json
from ratchet.progress import Progress
from ratchet.records import Question, Trajectory, content_key
from retrieval.index import Retriever
from retrieval.opening import open_index

GIVE_UP_AFTER = 20
"""Failed trajectories in a row after which the pool stops: then it is the server or the setup, not the question."""


@dataclass(frozen=True)
class Job:
    question: Question
    sample: int
    key: str
    seed: int


def policy_name(adapter: Path | None) -> str:
    """'base', or the adapter's digest."""
    return "base" if adapter is None else adapter_digest(adapter)


def plan_jobs(
    questions: Sequence[Question],
    samples: int,
    seed: int,
    system: SystemConfig,
    setting: Setting,
    models: dict[str, str],
    index: str,
) -> list[Job]:
    """All jobs of a pass, question by question so that samples of one question share their prompt's cache.

    `models` maps role to model fingerprint, `index` is the index's digest.
    """
    sampled_by = {key: value for key, value in asdict(setting).items() if key != "adapter"}
    jobs = []
    for question in questions:
        for sample in range(samples):
            key = content_key(
                "trajectory",
                question,
                system.model_dump(mode="json"),
                models,
                sampled_by,
                index,
                seed,
                sample,
            )
            jobs.append(Job(question, sample, key, int(key[:12], 16)))
    return jobs


def finished(folder: Path) -> dict[str, Trajectory]:
    """Trajectories on disk by key. One that failed (a server's or a machine's fault) does not count: it is redone."""
    return {t.key: t for t in read_segments(folder, Trajectory) if t.status != "failed"}


async def run_pool(
    jobs: Sequence[Job],
    system: System,
    engines: dict[str, Engine],
    retriever: Retriever,
    setting: Setting,
    segment: Segment,
    concurrency: int,
    progress: Progress,
) -> Counter[str]:
    """Run all jobs, `concurrency` at a time; each trajectory is on disk before it is counted."""
    counts: Counter[str] = Counter()
    failed_in_row = 0
    queue = iter(jobs)

    async def worker() -> None:
        nonlocal failed_in_row
        for job in queue:
            trajectory = await run_episode(
                job.question, system, engines, retriever, setting, key=job.key, sample=job.sample, seed=job.seed
            )
            segment.append(trajectory)
            counts[trajectory.status] += 1
            counts["tokens"] += sum(call.new_tokens for call in trajectory.model_calls)
            failed_in_row = failed_in_row + 1 if trajectory.status == "failed" else 0
            if failed_in_row >= GIVE_UP_AFTER:
                raise UserError(
                    f"the last {failed_in_row} trajectories failed, the last one with: {trajectory.error}\n"
                    "Finished ones are kept; mend this and run the same command again."
                )
            progress.advance(note=_note(counts))

    workers = [asyncio.create_task(worker()) for _ in range(min(concurrency, len(jobs)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return counts


def _note(counts: Counter[str]) -> str:
    states = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if name != "tokens")
    return f"{counts['tokens']} tokens  {states}"


def sample_questions(
    config: Config,
    system_config: SystemConfig,
    questions: Sequence[Question],
    folder: Path,
    samples: int,
    setting: Setting,
    title: str,
) -> list[Trajectory]:
    """Sample what is missing in `folder` and return all trajectories of the pass, in question and sample order."""
    system = load_system(system_config)
    roles = {role: system_config.role(role).model for role in system.roles}
    with contextlib.closing(asyncio.Runner()) as runner:
        engines = open_engines(config.models, set(roles.values()))
        try:
            retriever = open_index(config.index)
            models = {role: engines[name].fingerprint for role, name in roles.items()}
            jobs = plan_jobs(questions, samples, config.seed, system_config, setting, models, retriever.digest)
            write_json(
                folder / "provenance.json",
                {"models": models, "index": retriever.digest, "setting": asdict(setting), "seed": config.seed},
            )
            done = finished(folder)
            missing = [job for job in jobs if job.key not in done]
            if missing:
                with (
                    Segment(folder / "part-0.jsonl") as segment,
                    Progress(title, len(jobs), len(jobs) - len(missing)) as progress,
                ):
                    concurrency = config.sampling.concurrency
                    runner.run(run_pool(missing, system, engines, retriever, setting, segment, concurrency, progress))
        finally:
            runner.run(close_engines(engines))
    return ordered(jobs, folder)


def ordered(jobs: Iterable[Job], folder: Path) -> list[Trajectory]:
    """The jobs' trajectories in the jobs' order, failed ones included (the last try of each)."""
    by_key: dict[str, Trajectory] = {}
    for trajectory in read_segments(folder, Trajectory):
        if trajectory.status != "failed" or trajectory.key not in by_key:
            by_key[trajectory.key] = trajectory
    return [by_key[job.key] for job in jobs]
