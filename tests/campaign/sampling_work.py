"""Sampling as a piece of work that can be killed: a pool with a scripted engine, over a store in a folder."""

import asyncio
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.agents.core.system import load_system
from ratchet.core.config import SystemConfig
from ratchet.core.progress import Progress
from ratchet.core.records import Trajectory
from ratchet.sampling.pool import Task, plan_jobs, run_pool
from ratchet.sampling.store import Manifest, TrajectoryStore
from tests.helpers.any_system import Library, Talker
from tests.helpers.playing import QUESTION, SETTING, engine

SYSTEM = SystemConfig(name="vanilla_rag", settings={"style": "brief"})
WORK = "tests.campaign.sampling_work:sample"


def sample(request: Mapping[str, Any]) -> None:
    """Sample what is missing in request["folder"]: request["questions"] x request["samples"]."""
    store = TrajectoryStore(Path(request["folder"]))
    questions = [
        QUESTION.model_copy(update={"id": f"q{number}", "text": f"{QUESTION.text} {number}"})
        for number in range(request["questions"])
    ]
    jobs = plan_jobs(questions, request["samples"], 0, SYSTEM, SETTING, {"answerer": "m"}, "i")
    store.plan(
        Manifest(
            system=SYSTEM,
            setting={"policy": SETTING.policy},
            models={"answerer": "m"},
            index="i",
            sources={},
            seed=0,
            questions="q",
            samples=request["samples"],
            keys=tuple(job.key for job in jobs),
        )
    )
    system, agent = load_system(SYSTEM), engine(Talker().reply)
    with store.open_segment() as segment, Progress("sampling", len(jobs), out=io.StringIO()) as progress:
        done = store.finished()  # under the lock, or another writer may add to it meanwhile
        missing = [job for job in jobs if job.key not in done]
        tasks = [Task(job, system, SETTING, segment) for job in missing]
        asyncio.run(run_pool(tasks, {"agent": agent}, Library(), 4, progress))


def outcomes(folder: Path) -> list[tuple[object, ...]]:
    """What a store's trajectories came to, without how long they took."""
    return [outcome(trajectory) for trajectory in sorted(TrajectoryStore(folder).read(), key=lambda t: t.key)]


def outcome(trajectory: Trajectory) -> tuple[object, ...]:
    """What one trajectory came to."""
    said = tuple((one.role, one.ids, one.spans) for one in trajectory.conversations)
    return trajectory.key, trajectory.status, trajectory.answer, said
