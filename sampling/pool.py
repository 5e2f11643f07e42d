"""The sampling pool: any number of trajectories in flight, each at its own step.

There is no batch to wait for: a trajectory that ends is written and the next one starts, so the engine never idles
while work is left. Each trajectory has a content key; one that is on disk under its key is never sampled again, and
anything that would change the outcome (question, system, models, adapter, index, temperatures, seed) changes the key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agents.core.episode import Setting, run_episode
from agents.core.registry import System, load_system
from agents.core.resources import Reach, open_reach
from inference.adapters import read_adapter
from inference.engine import Engine
from inference.engines import close_engines, open_engines
from ratchet.config import Config, SystemConfig
from ratchet.errors import UserError
from ratchet.files import Segment
from ratchet.progress import Progress
from ratchet.records import Question, content_key, questions_digest
from ratchet.tasks import together
from retrieval.index import Retriever
from retrieval.opening import open_index
from sampling.store import FIRST_SEGMENT, Manifest, TrajectoryStore

GIVE_UP_AFTER = 20
"""Failed trajectories in a row after which the pool stops: then it is the server or the setup, not the question."""


@dataclass(frozen=True)
class Pass:
    """One system under one policy on some questions: what one folder of trajectories holds."""

    system: SystemConfig
    setting: Setting
    questions: Sequence[Question]
    samples: int
    folder: Path
    group: int = 0
    """Passes of a lower group are begun first: those of one adapter together, where a server holds only a few."""
    segment: str = FIRST_SEGMENT
    """The file in the folder that this pass writes. Several passes, on several machines, may fill one folder."""
    part: tuple[int, int] = (0, 1)
    """(K, N): only every N-th of the questions, from the K-th on. All parts share one evidence memory."""


@dataclass(frozen=True)
class Job:
    question: Question
    sample: int
    key: str
    seed: int


@dataclass(frozen=True)
class Task:
    """A job, who does it, and where its trajectory is written."""

    job: Job
    system: System
    setting: Setting
    segment: Segment


def policy_name(adapter: Path | None) -> str:
    """'base', or the adapter's digest. UserError for an adapter that cannot be used, before a question is asked."""
    return "base" if adapter is None else read_adapter(adapter).digest


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

    `models` maps role to model fingerprint, `index` is the digest of the index and of the other sources.
    """
    sampled_by = {key: value for key, value in asdict(setting).items() if key not in ("adapter", "scope")}
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


def scoped(made: Pass, questions: str, seed: int, models: dict[str, str], index: str) -> Setting:
    """The pass's setting, its scope made the experiment's own: the name that the setting gives it, and a key.

    `questions`: their digest.

    The key is of all that the trajectories depend on, the other questions and samples included, which leave evidence:
    whatever is changed begins with an empty memory, and the same command again goes on with what it left.
    """
    sampled_by = {key: value for key, value in asdict(made.setting).items() if key != "adapter"}
    key = content_key("scope", sampled_by, made.system, models, index, seed, questions, made.samples)
    return replace(made.setting, scope=f"{made.setting.scope} {key[:12]}")


async def run_pool(
    tasks: Sequence[Task],
    engines: dict[str, Engine],
    retriever: Retriever,
    concurrency: int,
    progress: Progress,
    reach: Reach | None = None,
) -> Counter[str]:
    """Run all tasks, `concurrency` at a time; each trajectory is on disk before it is counted."""
    counts: Counter[str] = Counter()
    failed_in_row = 0
    queue = iter(tasks)

    async def worker() -> None:
        nonlocal failed_in_row
        for task in queue:
            job = task.job
            trajectory = await run_episode(
                job.question,
                task.system,
                engines,
                retriever,
                task.setting,
                key=job.key,
                sample=job.sample,
                seed=job.seed,
                reach=reach,
            )
            task.segment.append(trajectory)
            counts[trajectory.status] += 1
            counts["tokens"] += sum(call.new_tokens for call in trajectory.model_calls)
            failed_in_row = failed_in_row + 1 if trajectory.status == "failed" else 0
            if failed_in_row >= GIVE_UP_AFTER:
                raise UserError(
                    f"the last {failed_in_row} trajectories failed, the last one with: {trajectory.error}\n"
                    "Finished ones are kept; mend this and run the same command again."
                )
            progress.advance(note=_note(counts))

    await together([worker() for _ in range(min(concurrency, len(tasks)))])
    return counts


def _note(counts: Counter[str]) -> str:
    states = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if name != "tokens")
    return f"{counts['tokens']} tokens  {states}"


def sample(config: Config, passes: Sequence[Pass], title: str) -> list[list[str]]:
    """Sample what is missing, all passes in one pool; the keys of what each pass samples itself, in their order.

    Group by group, and question by question over all passes of one: what two systems ask about one question begins
    alike, and is prefilled once.
    """
    systems = [load_system(made.system) for made in passes]
    roles = [{role: system.config.role(role).model for role in system.roles} for system in systems]
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(contextlib.closing(asyncio.Runner()))
        engines = open_engines(config.models, {name for played in roles for name in played.values()})
        stack.callback(lambda: runner.run(close_engines(engines)))
        retriever = open_index(config.index)
        reach = open_reach(config, retriever)
        stack.callback(lambda: runner.run(reach.close()))
        looks_in = content_key(retriever.digest, reach.digest) if reach.digest else retriever.digest
        planned: list[list[Job]] = []
        missing: list[tuple[tuple[int, int], Task]] = []
        for made, system, played in zip(passes, systems, roles, strict=True):
            models = {role: engines[name].fingerprint for role, name in played.items()}
            asked = questions_digest(made.questions)
            setting = scoped(made, asked, config.seed, models, looks_in)
            jobs = plan_jobs(made.questions, made.samples, config.seed, made.system, setting, models, looks_in)
            store = TrajectoryStore(made.folder)
            store.plan(
                Manifest(
                    system=made.system,
                    setting=asdict(setting),
                    models=models,
                    index=retriever.digest,
                    sources={name: source.digest for name, source in reach.sources.items()},
                    seed=config.seed,
                    questions=asked,
                    samples=made.samples,
                    keys=tuple(job.key for job in jobs),
                )
            )
            first, parts = made.part
            jobs = [job for n, job in enumerate(jobs) if n // made.samples % parts == first]
            planned.append(jobs)
            seen = _sizes(store)
            done = store.finished()
            if all(job.key in done for job in jobs):
                continue
            segment = stack.enter_context(store.open_segment(made.segment))
            if _sizes(store) != seen:  # while we waited for the file, its writer went on
                done = store.finished()
            missing += [
                ((made.group, n // made.samples), Task(job, system, setting, segment))
                for n, job in enumerate(jobs)
                if job.key not in done
            ]
        if missing:
            tasks = [task for _, task in sorted(missing, key=lambda pair: pair[0])]
            total = sum(map(len, planned))
            progress = stack.enter_context(Progress(title, total, total - len(tasks)))
            runner.run(run_pool(tasks, engines, retriever, config.sampling.concurrency, progress, reach))
    return [[job.key for job in jobs] for jobs in planned]


def _sizes(store: TrajectoryStore) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in store.segments}
