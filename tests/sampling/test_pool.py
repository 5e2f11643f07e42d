"""The pool: no barrier, nothing repeated, nothing lost, and it stops when everything fails."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.agents.core.system import load_system
from ratchet.agents.core.task import Job
from ratchet.core.config import SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, read_segments
from ratchet.core.progress import Progress
from ratchet.core.records import Question, Trajectory
from ratchet.inference.engine import EngineError
from ratchet.inference.scripted import ScriptedEngine
from ratchet.sampling.pool import Task, plan_jobs, run_pool
from ratchet.sampling.store import TrajectoryStore
from tests.helpers.playing import SETTING, Shelf
from tests.helpers.tiny import tiny_format

SYSTEM = SystemConfig(name="no_retrieval", settings={"style": "brief"})
QUESTIONS = [Question(id=f"q{i}", text=f"What is {i}?") for i in range(6)]


def plan(**changes: Any) -> list[Job]:
    arguments: dict[str, Any] = {
        "questions": QUESTIONS,
        "samples": 3,
        "seed": 0,
        "system": SYSTEM,
        "context": SETTING,
        "models": {"answerer": "m"},
        "index": "i",
    }
    return plan_jobs(**{**arguments, **changes})


def run(jobs: list[Job], engine: ScriptedEngine, folder: Path, concurrency: int = 4) -> None:
    with Segment(folder / "part-0.jsonl") as segment, Progress("sampling", len(jobs)) as progress:
        tasks = [Task(job, load_system(SYSTEM), SETTING, segment) for job in jobs]
        asyncio.run(run_pool(tasks, {"agent": engine}, Shelf({}), concurrency, progress))


def test_keys_change_with_whatever_could_change_the_outcome_and_with_nothing_else() -> None:
    base = [job.key for job in plan()]
    assert len(set(base)) == 18 and base == [job.key for job in plan()]
    assert base == [job.key for job in plan(samples=5) if job.sample < 3], "more samples keep the first ones"
    changed = [
        plan(seed=1),
        plan(index="other"),
        plan(models={"answerer": "other"}),
        plan(context=replace(SETTING, temperature=0.8)),
        plan(context=replace(SETTING, adapter="somewhere", policy="digest")),
        plan(system=SYSTEM.model_copy(update={"malformed": "give_up"})),
        plan(questions=[q.model_copy(update={"text": q.text + "!"}) for q in QUESTIONS]),
    ]
    for jobs in changed:
        assert not set(base) & {job.key for job in jobs}
    moved = plan(context=replace(SETTING, adapter="elsewhere"))
    assert [job.key for job in moved] == base, "an adapter counts by its content, not its path"


def test_a_slow_trajectory_holds_nobody_up(tmp_path: Path) -> None:
    """With a barrier the fast ones would wait for the slow one; here they are all done before it."""
    order: list[str] = []
    others = asyncio.Event()

    class Slow(ScriptedEngine):
        async def generate(self, prompt: Any, params: Any, adapter: Any = None, messages: Any = ()) -> Any:
            text = messages[-1]["content"]
            if "What is 0?" in text:
                await asyncio.wait_for(others.wait(), 300)
            order.append(text)
            if len(order) == 5:
                others.set()
            return await super().generate(prompt, params, adapter, messages)

    jobs = plan(samples=1)
    run(jobs, Slow(tiny_format(), lambda *_: "x"), tmp_path, concurrency=2)
    assert "What is 0?" in order[-1] and len(order) == 6


def test_at_most_so_many_run_at_once_and_all_run(tmp_path: Path) -> None:
    engine = ScriptedEngine(tiny_format(), lambda *_: "x", delay=0.005)
    run(plan(), engine, tmp_path, concurrency=4)
    assert engine.max_running == 4
    assert len(list(read_segments(tmp_path, Trajectory))) == 18


def test_failed_trajectories_are_redone_and_the_good_record_wins(tmp_path: Path) -> None:
    jobs = plan(samples=1)
    replies: list[Any] = ["x"] * 6
    replies[2] = EngineError("the server went away")
    run(jobs, ScriptedEngine(tiny_format(), replies), tmp_path, concurrency=1)
    store = TrajectoryStore(tmp_path)
    done = store.finished()
    assert len(done) == 5
    keys = [job.key for job in jobs]
    assert [t.status for t in store.load(keys)].count("failed") == 1
    run([job for job in jobs if job.key not in done], ScriptedEngine(tiny_format(), ["x"]), tmp_path)
    assert {t.status for t in store.load(keys)} == {"finished"}
    assert [t.key for t in store.load(keys)] == keys
    assert [t.key for t in store.load([*keys[::-1], "not there"])] == keys[::-1]


def test_when_everything_fails_the_pool_stops_and_says_why(tmp_path: Path) -> None:
    engine = ScriptedEngine(tiny_format(), [EngineError("connection refused")] * 100)
    jobs = plan(samples=10)
    with pytest.raises(UserError, match=r"last 20 trajectories failed, or a tool .*connection refused"):
        run(jobs, engine, tmp_path, concurrency=1)
    assert len(list(read_segments(tmp_path, Trajectory))) == 20
