"""FIRE: an answer or the next query, again and again, and an end to going round in circles."""

from __future__ import annotations

from typing import Any

import pytest

from agents.core.resources import Resources
from inference.scripted import ScriptedEngine
from ratchet.records import Trajectory
from tests.helpers.playing import CLAIM, Everywhere, Shelf, apart, engine, passage, play, say
from tests.helpers.snapshots import check_snapshot

SHELF = {f"query {n}": [passage(n), passage(n + 1)] for n in range(9)}


def look(query: str) -> str:
    return say(reasoning="not sure", search_query=query)


def final(label: str = "SUPPORTS") -> str:
    return say(reasoning="It says so.", final_answer=label)


async def check(agent: ScriptedEngine, shelf: Shelf | None = None, **settings: Any) -> Trajectory:
    shelf = shelf or Shelf(SHELF)
    resources = Resources(Everywhere(shelf), None, apart)
    return await play({"name": "fire", "settings": settings}, agent, shelf, question=CLAIM, resources=resources)


async def test_it_searches_until_it_is_sure() -> None:
    agent, shelf = engine([look("query 1"), look("query 2"), final("REFUTES")]), Shelf(SHELF)
    done = await check(agent, shelf)
    assert (done.answer, done.stopped) == ("REFUTES", "answer at step 3")
    assert shelf.asked == [("query 1", 3, 0), ("query 2", 3, 0)]
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


async def test_a_query_that_repeats_ends_the_searching() -> None:
    agent, shelf = engine([look("query 1"), look("query 1"), final()]), Shelf(SHELF)
    done = await check(agent, shelf)
    assert len(shelf.asked) == 1 and len(done.model_calls) == 3
    assert done.stopped == "answer forced: queries repeat at step 2" and done.turns[1].query == "query 1"


async def test_results_that_repeat_end_the_searching() -> None:
    shelf = Shelf({query: [passage(1)] for query in ("one", "two", "three")})
    done = await check(engine([look("one"), look("two"), look("three"), final()]), shelf)
    assert len(shelf.asked) == 2 and done.stopped == "answer forced: results repeat at step 3"


async def test_tolerance_is_how_many_in_a_row() -> None:
    done = await check(engine([*[look("query 1")] * 3, final()]), tolerance=3)
    assert (len(done.searches), done.stopped) == (2, "answer forced: queries repeat at step 3")
    mixed = [look("query 1"), look("query 2"), look("query 1"), look("query 2"), final()]
    assert len((await check(engine(mixed), tolerance=3)).searches) == 4
    done = await check(engine([*[look("query 1")] * 5, final()]), tolerance=None)
    assert len(done.searches) == 5


async def test_what_cannot_be_read_goes_to_the_last_call() -> None:
    done = await check(engine(["no idea", final()]))
    assert (done.answer, len(done.model_calls)) == ("SUPPORTS", 2)
    assert done.stopped == "answer forced: no decision could be read at step 1"
    assert (await check(engine(["no idea", "none"]))).status == "unparsed"
