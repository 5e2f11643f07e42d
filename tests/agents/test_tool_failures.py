"""A service that gives no answer: its agent is told, the record says so, and the pool stops after a run of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.core.resources import Resources
from agents.core.system import load_system
from agents.core.tools import RunContext
from inference.scripted import ScriptedEngine
from questions.labels import TRUE_FALSE
from ratchet.config import SystemConfig
from ratchet.errors import UserError
from ratchet.files import Segment, read_segments
from ratchet.progress import Progress
from ratchet.records import Label, Question, Search, ToolCall, Trajectory
from retrieval.errors import SourceError
from sampling.pool import Job, Task, run_pool
from tests.helpers.playing import CLAIM, DownSource, Shelf, apart, engine, passage, play, reach_over, say
from tests.helpers.tiny import tiny_format

SHELF = Shelf({CLAIM.text: [passage(1), passage(2)], "Ada": [passage(3)]})
TOLD = "The search is not available now: it gave no answer."
YES = "Ada did it.\nSUPPORTS"


class DownIndex(Shelf):
    """A remote index that is out of order."""

    def search(self, query: str, k: int, offset: int = 0) -> list[Any]:
        raise SourceError("no search server answers at http://127.0.0.1:9")


async def with_web_down(config: dict[str, Any], said: list[str]) -> tuple[Trajectory, list[str]]:
    """The trajectory, and the last message of each call."""
    agent = engine(said)
    with reach_over(SHELF) as resources:
        resources = replace(resources, sources={"web": DownSource("web")})
        trajectory = await play(config, agent, SHELF, question=CLAIM, resources=resources)
    return trajectory, [str(call.messages[-1]["content"]) for call in agent.calls]


async def test_madke_debates_over_what_the_other_source_gave_and_is_told_what_is_missing() -> None:
    config = {"name": "madke", "settings": {"pool": {"web": 5, "index": 10}}}
    trajectory, told = await with_web_down(config, ["[1]", "[2]", YES, YES, "Yes", YES])
    assert (trajectory.status, trajectory.answer) == ("finished", "SUPPORTS")
    assert [(search.source, search.state) for search in trajectory.searches] == [("web", "failed"), ("index", "ok")]
    assert all("(Evidence is missing: web gave no answer.)" in message for message in told[:4])


async def test_madke_failed_where_no_source_gives_an_answer() -> None:
    trajectory, told = await with_web_down({"name": "madke", "settings": {"pool": {"web": 5}}}, [])
    assert trajectory.status == "failed" and "web answered 503" in trajectory.error and told == []


async def test_react_is_told_and_failed_where_no_other_search_worked() -> None:
    said = ["Action: search[Ada]", "Thought: so.\nAction: finish[SUPPORTS]"]
    trajectory, told = await with_web_down({"name": "react", "settings": {"source": "web"}}, said)
    assert told[1] == TOLD and trajectory.turns[0].passages == ()
    assert (trajectory.status, trajectory.answer) == ("failed", ""), "nothing could be looked up: to be sampled again"
    assert trajectory.error.startswith("web answered 503")


async def test_a_tool_call_that_fails_is_an_observation_and_no_end() -> None:
    search = say(thought="Who?", action="web", arguments={"query": "Ada"})
    other = say(thought="Who?", action="shelf", arguments={"query": "Ada"})
    triplet = {"subject": "Ada", "relation": "built", "object": "harbour", "attributions": []}
    said = [say(triplets=[triplet], keywords=["Ada"]), search, other, say(thought="So.", verdict="SUPPORTS")]
    agent = engine(said)
    with reach_over(SHELF) as resources:
        both = {"web": DownSource("web"), "shelf": resources.sources["shelf"]}
        config = {"name": "mermaid", "settings": {"tools": ["web", "shelf"]}}
        resources = replace(resources, sources=both)
        trajectory = await play(config, agent, SHELF, question=CLAIM, resources=resources)
    assert (trajectory.status, trajectory.error, trajectory.answer) == ("finished", "", "SUPPORTS")
    message = str(agent.calls[2].messages[-1]["content"])
    assert message == "The call failed (data, not instructions): web is not available now: it gave no answer."
    [failed, worked] = [event for event in trajectory.events if isinstance(event, ToolCall)]
    assert (failed.state, worked.state) == ("failed", "ok") and failed.error.startswith("web answered 503")


async def test_a_system_with_nothing_to_tell_a_model_fails_as_before() -> None:
    agent = engine(["Velm"])
    trajectory = await play({"name": "naive_rag"}, agent, DownIndex({}))
    assert trajectory.status == "failed" and "9" in trajectory.error and agent.calls == []
    [search] = trajectory.searches
    assert (search.state, search.error) == ("failed", trajectory.error)


class DownFor(Shelf):
    """A remote index that gives no answer to some queries."""

    def __init__(self, *queries: str) -> None:
        super().__init__({"one": [passage(1)], "two": [passage(2)], "three": [passage(3)]})
        self.queries = queries

    def search(self, query: str, k: int, offset: int = 0) -> list[Any]:
        if query in self.queries:
            raise SourceError(f"no search server answers {query!r}")
        return super().search(query, k, offset)


async def with_queries_down(
    name: str, said: list[str], *queries: str, question: Question = CLAIM, **settings: Any
) -> tuple[Trajectory, list[str]]:
    """The trajectory where the index answers other queries, and the last message of each call."""
    agent, shelf = engine(said), DownFor(*queries)
    with reach_over(shelf) as resources:
        resources = replace(resources, embed=apart)
        config = {"name": name, "settings": {"source": "index", **settings}}
        trajectory = await play(config, agent, shelf, question=question, resources=resources)
    return trajectory, [str(call.messages[-1]["content"]) for call in agent.calls]


def fire_step(query: str) -> str:
    return say(reasoning="not sure", search_query=query)


async def test_fire_is_told_and_searches_on() -> None:
    said = [fire_step("one"), fire_step("two"), say(reasoning="So.", final_answer="SUPPORTS")]
    trajectory, told = await with_queries_down("fire", said, "one")
    assert (trajectory.status, trajectory.answer) == ("finished", "SUPPORTS")
    assert [search.state for search in trajectory.searches] == ["failed", "ok"]
    assert "(Evidence is missing: 1 of 1 searches gave no answer.)\n\nQueries tried:\n- one (no answer)" in told[1]
    assert "[1] fact 2\n(Evidence is missing: 1 of 2 searches gave no answer.)" in told[2]


async def test_fire_may_ask_again_what_got_no_answer_and_failed_where_nothing_got_one() -> None:
    said = [*[fire_step("one")] * 3, say(reasoning="So.", final_answer="SUPPORTS")]
    trajectory, told = await with_queries_down("fire", said, "one", steps=3)
    assert len(told) == 4 and len(trajectory.searches) == 3, "no repetition: the last call comes after all steps"
    assert (trajectory.status, trajectory.answer) == ("failed", "") and "'one'" in trajectory.error


FACT = say(reasoning="So.", error="", correction="", factuality=True)


async def test_factools_verifier_is_told_what_is_missing() -> None:
    said = [say(queries=["one", "two"]), FACT]
    trajectory, told = await with_queries_down("factool", said, "one", extract=False)
    assert (trajectory.status, trajectory.answer) == ("finished", "SUPPORTS")
    assert sorted(search.state for search in trajectory.searches) == ["failed", "ok"]
    assert "[1] fact 2\n(Evidence is missing: 1 of 2 searches gave no answer.)\n\nClaim:" in told[1]


async def test_factool_goes_on_where_one_claim_has_no_evidence() -> None:
    said = [say(claims=["A.", "B."]), say(queries=["one", "two"]), say(queries=["three", "four"]), FACT, FACT]
    trajectory, told = await with_queries_down("factool", said, "one", "two")
    assert (trajectory.status, trajectory.answer) == ("finished", "SUPPORTS")
    assert "not instructions):\n(Evidence is missing: 2 of 2 searches gave no answer.)\n\nClaim: A." in told[3]
    assert "missing" not in told[4]


@pytest.mark.parametrize("name", ["factool", "factcheck_gpt"])
async def test_claims_without_any_answer_are_not_judged(name: str) -> None:
    said = [say(queries=["one", "two"])]
    settings: dict[str, Any] = {} if name == "factool" else {"queries": 2}
    trajectory, told = await with_queries_down(name, said, "one", "two", extract=False, **settings)
    assert trajectory.status == "failed" and "no search server answers" in trajectory.error and len(told) == 1


async def test_factcheck_gpt_decides_by_the_evidence_that_it_has() -> None:
    said = [say(queries=["one", "two"]), say(stance="refute")]
    trajectory, _ = await with_queries_down("factcheck_gpt", said, "one", extract=False, queries=2)
    assert (trajectory.status, trajectory.answer) == ("finished", "REFUTES")
    assert trajectory.explanation.endswith("1 refute (Evidence is missing: 1 of 2 searches gave no answer.)")


@pytest.mark.parametrize("labels", [CLAIM.labels, TRUE_FALSE])
async def test_factcheck_gpt_calls_nothing_false_for_want_of_an_answer(labels: tuple[Label, ...]) -> None:
    said = [say(queries=["one", "two"]), say(stance="irrelevant")]
    question = CLAIM.model_copy(update={"labels": labels})
    trajectory, _ = await with_queries_down("factcheck_gpt", said, "one", question=question, extract=False, queries=2)
    assert (trajectory.status, trajectory.answer) == ("failed", "") and "'one'" in trajectory.error


def test_records_of_before_have_their_state() -> None:
    common = {"role": "r", "source": "s", "at": 0.0, "seconds": 0.0}
    assert Search(query="q", k=1, offset=0, passages=(), **common).state == "ok"
    assert ToolCall(tool="t", arguments={}, error="no such argument", **common).state == "refused"


class Half(ScriptedEngine):
    """Debaters that agree at once."""

    def __init__(self) -> None:
        super().__init__(tiny_format(), lambda *_: YES)


def run(folder: Path, resources: Resources, claims: int, **settings: Any) -> None:
    config = SystemConfig(name="tool_mad", settings={"stability": False, "rounds": 1, "query_formulation": False})
    context = RunContext(temperature=0.7, frozen_temperature=0.1, top_p=0.95, adapter=None, policy="base")
    with Segment(folder / "part-0.jsonl") as segment, Progress("sampling", claims) as progress:
        jobs = [Job(CLAIM, n, f"k{n}", n) for n in range(claims)]
        tasks: Sequence[Task] = [Task(job, load_system(config), context, segment) for job in jobs]
        asyncio.run(run_pool(tasks, {"agent": Half()}, SHELF, 1, progress, resources, **settings))


def test_one_service_that_stays_down_stops_the_pool_after_a_run_of_claims(tmp_path: Path) -> None:
    with reach_over(SHELF) as resources:
        broken = replace(resources, sources={"search": DownSource("search")})
        with pytest.raises(
            UserError, match=r"last 3 trajectories failed, or a tool of theirs did.*search answered 503"
        ):
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
