"""A service that gives no answer: its agent is told, the record says so, and the pool stops after a run of them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.agents.core.resources import Resources
from ratchet.agents.core.system import load_system
from ratchet.agents.core.task import Job
from ratchet.core.config import SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, read_segments
from ratchet.core.progress import Progress
from ratchet.core.records import Trajectory
from ratchet.sampling.play import resources_over
from ratchet.sampling.pool import Task, run_pool
from tests.helpers.playing import CLAIM, SETTING, DownSource, Shelf, alike, engine, passage

SHELF = Shelf({CLAIM.text: [passage(1), passage(2)], "Ada": [passage(3)]})
YES = "Ada did it.\nSUPPORTS"


def run(folder: Path, resources: Resources, claims: int, **settings: Any) -> None:
    """Debaters that agree at once."""
    config = SystemConfig(name="tool_mad", settings={"stability": False, "rounds": 1, "query_formulation": False})
    with Segment(folder / "part-0.jsonl") as segment, Progress("sampling", claims) as progress:
        jobs = [Job(CLAIM, n, f"k{n}", n) for n in range(claims)]
        tasks = [Task(job, load_system(config), SETTING, segment) for job in jobs]
        agent = engine(lambda *_: YES)
        asyncio.run(run_pool(tasks, {"agent": agent}, SHELF, 1, progress, resources, **settings))


def test_one_service_that_stays_down_stops_the_pool_after_a_run_of_claims(tmp_path: Path) -> None:
    with resources_over(SHELF, alike) as resources:
        broken = replace(resources, sources={"search": DownSource("search")})
        message = r"last 3 trajectories failed, or a tool of theirs did.*search answered 503"
        with pytest.raises(UserError, match=message):
            run(tmp_path, broken, 9, max_failures=3)
    found = list(read_segments(tmp_path, Trajectory))
    assert [t.status for t in found] == ["finished"] * 3, "the other agent went on"


class Flaky(DownSource):
    """Answers every second search."""

    asked = 0

    async def search(self, query: str, k: int, offset: int = 0) -> list[Any]:
        self.asked += 1
        return await super().search(query, k, offset) if self.asked % 2 else [passage(7)]


def test_failures_that_are_not_in_a_row_stop_nothing(tmp_path: Path) -> None:
    with resources_over(SHELF, alike) as resources:
        run(tmp_path, replace(resources, sources={"search": Flaky("search")}), 9, max_failures=2)
    assert len(list(read_segments(tmp_path, Trajectory))) == 9
