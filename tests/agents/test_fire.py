"""FIRE: an answer or the next query, again and again, and an end to going round in circles."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.agents.core.resources import Resources
from ratchet.core.records import Trajectory
from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.playing import CLAIM, Everywhere, Shelf, apart, engine, passage, play, say
from tests.helpers.snapshots import check_snapshot

SHELF = {f"query {n}": [passage(n), passage(n + 1)] for n in range(9)}
ALIKE = {query: [passage(1)] for query in ("one", "two", "three")}


def look(query: str) -> str:
    return say(reasoning="not sure", search_query=query)


def final(label: str = "SUPPORTS") -> str:
    return say(reasoning="It says so.", final_answer=label)


async def check(agent: ScriptedEngine, shelf: dict[str, Any] = SHELF, **settings: Any) -> Trajectory:
    resources = Resources(Everywhere(Shelf(shelf)), None, apart)
    return await play({"name": "fire", "settings": settings}, agent, question=CLAIM, resources=resources)


async def test_it_searches_until_it_is_sure() -> None:
    agent = engine([look("query 1"), look("query 2"), final("REFUTES")])
    done = await check(agent)
    assert (done.answer, done.stopped) == ("REFUTES", "answer at step 3")
    assert [(search.query, search.k) for search in done.searches] == [("query 1", 3), ("query 2", 3)]
    assert [p.id for p in done.passages] == ["c1", "c2", "c3"] and len(done.conversations) == 3
    assert [(t.round, t.query, t.passages, t.verdict) for t in done.turns] == [
        (1, "query 1", ("c1", "c2"), ""),
        (2, "query 2", ("c2", "c3"), ""),
        (3, "", (), "REFUTES"),
    ]
    check_snapshot("fire", agent)


@pytest.mark.parametrize("steps", [0, 2, 5])
async def test_after_its_steps_it_must_answer(steps: int) -> None:
    agent = engine([*[look(f"query {n}") for n in range(steps)], final()])
    done = await check(agent, steps=steps)
    assert (len(done.model_calls), len(done.searches)) == (steps + 1, steps)
    assert done.answer == "SUPPORTS" and done.stopped == f"answer after {steps} search(es): the budget"
    assert "anyOf" not in (agent.calls[-1].params.schema or {})


@pytest.mark.parametrize(
    ("queries", "tolerance", "shelf", "searches", "stopped"),
    [
        (["query 1"] * 2, 2, SHELF, 1, "answer forced: queries repeat at step 2"),
        (["one", "two", "three"], 2, ALIKE, 2, "answer forced: results repeat at step 3"),
        (["query 1"] * 3, 3, SHELF, 2, "answer forced: queries repeat at step 3"),
        (["query 1", "query 2"] * 2, 3, SHELF, 4, "answer at step 5"),
        (["query 1"] * 5, None, SHELF, 5, "answer after 5 search(es): the budget"),
    ],
)
async def test_so_many_that_repeat_in_a_row_end_the_searching(
    queries: list[str], tolerance: int | None, shelf: dict[str, Any], searches: int, stopped: str
) -> None:
    done = await check(engine([*map(look, queries), final()]), shelf, tolerance=tolerance)
    assert (len(done.searches), done.stopped, done.answer) == (searches, stopped, "SUPPORTS")
    assert [turn.query for turn in done.turns] == [*queries, ""]


async def test_what_cannot_be_read_goes_to_the_last_call() -> None:
    done = await check(engine(["no idea", final()]))
    assert (done.answer, done.stopped) == ("SUPPORTS", "answer forced: no decision could be read at step 1")
    assert (await check(engine(["no idea", "none"]))).status == "unparsed"
