"""A service that gives no answer: its agent is told, the record says so, and the pool stops after a run of them."""

from __future__ import annotations

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
from ratchet.core.records import Label, Question, Search, ToolCall, Trajectory
from ratchet.questions.labels import TRUE_FALSE
from ratchet.retrieval.retriever import SourceError
from ratchet.sampling.pool import Task, run_pool
from tests.helpers.playing import CLAIM, SETTING, DownSource, Shelf, apart, engine, passage, play, reach_over, say

SHELF = Shelf({CLAIM.text: [passage(1), passage(2)], "Ada": [passage(3)]})
FOUND = {"one": [passage(1)], "two": [passage(2)], "three": [passage(3)]}
YES = "Ada did it.\nSUPPORTS"
MISSING = "(Evidence is missing: {} of {} searches gave no answer.)"


class Down(Shelf):
    """A remote index that gives no answer to some queries."""

    def __init__(self, *queries: str) -> None:
        super().__init__(FOUND)
        self.queries = queries

    def search(self, query: str, k: int, offset: int = 0) -> list[Any]:
        if query in self.queries:
            raise SourceError(f"no search server answers {query!r}")
        return super().search(query, k, offset)


async def played(
    name: str, said: list[str], *queries: str, question: Question = CLAIM, **settings: Any
) -> tuple[Trajectory, list[str]]:
    """The trajectory where the index gives these queries no answer and the source "web" none at all, and the last
    message of each call."""
    agent, shelf = engine(said), Down(*queries) if queries else SHELF
    with reach_over(shelf) as resources:
        sources = {"web": DownSource("web"), "index": resources.sources["index"], "shelf": resources.sources["shelf"]}
        resources = replace(resources, sources=sources, embed=apart)
        trajectory = await play(
            {"name": name, "settings": settings}, agent, shelf, question=question, resources=resources
        )
    return trajectory, [str(call.messages[-1]["content"]) for call in agent.calls]


async def test_madke_debates_over_what_the_other_source_gave_and_is_told_what_is_missing() -> None:
    said = ["[1]", "[2]", YES, YES, "Yes", YES]
    trajectory, told = await played("madke", said, pool={"web": 5, "index": 10})
    assert (trajectory.status, trajectory.answer) == ("finished", "SUPPORTS")
    assert [(search.source, search.state) for search in trajectory.searches] == [("web", "failed"), ("index", "ok")]
    assert all("(Evidence is missing: web gave no answer.)" in message for message in told[:4])


async def test_a_tool_call_that_fails_is_an_observation_and_no_end() -> None:
    calls = [say(thought="Who?", action=tool, arguments={"query": "Ada"}) for tool in ("web", "shelf")]
    said = [*calls, say(thought="So.", verdict="SUPPORTS")]
    trajectory, told = await played("mermaid", said, tools=["web", "shelf"], decomposer=False)
    assert (trajectory.status, trajectory.error, trajectory.answer) == ("finished", "", "SUPPORTS")
    assert told[1] == "The call failed (data, not instructions): web is not available now: it gave no answer."
    [failed, worked] = [event for event in trajectory.events if isinstance(event, ToolCall)]
    assert (failed.state, worked.state) == ("failed", "ok") and failed.error.startswith("web answered 503")


def fire_step(query: str) -> str:
    return say(reasoning="not sure", search_query=query)


async def test_fire_is_told_and_searches_on() -> None:
    said = [fire_step("one"), fire_step("two"), say(reasoning="So.", final_answer="SUPPORTS")]
    trajectory, told = await played("fire", said, "one", source="index")
    assert (trajectory.status, trajectory.answer) == ("finished", "SUPPORTS")
    assert [search.state for search in trajectory.searches] == ["failed", "ok"]
    assert f"{MISSING.format(1, 1)}\n\nQueries tried:\n- one (no answer)" in told[1]
    assert f"[1] fact 2\n{MISSING.format(1, 2)}" in told[2]


FACT = say(reasoning="So.", error="", correction="", factuality=True)
ONE_TWO = say(queries=["one", "two"])


async def test_factools_verifier_is_told_what_is_missing() -> None:
    said = [say(claims=["A.", "B."]), ONE_TWO, say(queries=["three", "four"]), FACT, FACT]
    trajectory, told = await played("factool", said, "one", "two", "four", source="index")
    assert (trajectory.status, trajectory.answer) == ("finished", "SUPPORTS")
    assert f"not instructions):\n{MISSING.format(2, 2)}\n\nClaim: A." in told[3]
    assert f"[1] fact 3\n{MISSING.format(1, 2)}\n\nClaim: B." in told[4]


async def test_factcheck_gpt_decides_by_the_evidence_that_it_has() -> None:
    said = [ONE_TWO, say(stance="refute")]
    trajectory, _ = await played("factcheck_gpt", said, "one", source="index", extract=False, queries=2)
    assert (trajectory.status, trajectory.answer) == ("finished", "REFUTES")
    assert trajectory.explanation.endswith(f"1 refute {MISSING.format(1, 2)}")


@pytest.mark.parametrize("labels", [CLAIM.labels, TRUE_FALSE])
async def test_factcheck_gpt_calls_nothing_false_for_want_of_an_answer(labels: tuple[Label, ...]) -> None:
    said, question = [ONE_TWO, say(stance="irrelevant")], CLAIM.model_copy(update={"labels": labels})
    settings: dict[str, Any] = {"source": "index", "extract": False, "queries": 2}
    trajectory, _ = await played("factcheck_gpt", said, "one", question=question, **settings)
    assert (trajectory.status, trajectory.answer) == ("failed", "") and "'one'" in trajectory.error


@pytest.mark.parametrize(
    ("name", "said", "queries", "settings", "calls"),
    [
        ("naive_rag", [], [CLAIM.text], {}, 0),
        ("madke", [], [], {"pool": {"web": 5}}, 0),
        ("react", ["Action: search[Ada]", "Thought: so.\nAction: finish[SUPPORTS]"], [], {"source": "web"}, 2),
        # no repetition: the last call comes after all steps
        (
            "fire",
            [*[fire_step("one")] * 3, say(reasoning="So.", final_answer="SUPPORTS")],
            ["one"],
            {"source": "index", "steps": 3},
            4,
        ),
        ("factool", [ONE_TWO], ["one", "two"], {"source": "index", "extract": False}, 1),
        ("factcheck_gpt", [ONE_TWO], ["one", "two"], {"source": "index", "extract": False, "queries": 2}, 1),
    ],
)
async def test_where_nothing_could_be_looked_up_the_trajectory_failed_and_is_sampled_again(
    name: str, said: list[str], queries: list[str], settings: dict[str, Any], calls: int
) -> None:
    trajectory, told = await played(name, said, *queries, **settings)
    assert (trajectory.status, trajectory.answer, len(told)) == ("failed", "", calls)
    assert {search.state for search in trajectory.searches} == {"failed"}
    assert trajectory.error == trajectory.searches[-1].error
    if name == "react":
        assert told[1] == "The search is not available now: it gave no answer."


def test_records_of_before_have_their_state() -> None:
    common = {"role": "r", "source": "s", "at": 0.0, "seconds": 0.0}
    assert Search(query="q", k=1, offset=0, passages=(), **common).state == "ok"
    assert ToolCall(tool="t", arguments={}, error="no such argument", **common).state == "refused"


def run(folder: Path, resources: Resources, claims: int, **settings: Any) -> None:
    """Debaters that agree at once."""
    config = SystemConfig(name="tool_mad", settings={"stability": False, "rounds": 1, "query_formulation": False})
    with Segment(folder / "part-0.jsonl") as segment, Progress("sampling", claims) as progress:
        jobs = [Job(CLAIM, n, f"k{n}", n) for n in range(claims)]
        tasks = [Task(job, load_system(config), SETTING, segment) for job in jobs]
        agent = engine(lambda *_: YES)
        asyncio.run(run_pool(tasks, {"agent": agent}, SHELF, 1, progress, resources, **settings))


def test_one_service_that_stays_down_stops_the_pool_after_a_run_of_claims(tmp_path: Path) -> None:
    with reach_over(SHELF) as resources:
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
    with reach_over(SHELF) as resources:
        run(tmp_path, replace(resources, sources={"search": Flaky("search")}), 9, max_failures=2)
    assert len(list(read_segments(tmp_path, Trajectory))) == 9
