"""DRAG: what becomes of the pool, and what each side gets to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ratchet.agents.core.prompts import MARK
from ratchet.agents.debates import nearest_query
from ratchet.core.records import Note, Trajectory
from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.playing import QUESTION, Shelf, engine, passage, play
from tests.helpers.snapshots import check_snapshot

Q = QUESTION.text
EXPAND = "Query Expansion: Ada Torrin engineer"
OPTIMISE = f"Query Optimization: {Q} -> harbour of Velm builder"
ROUNDS = [f"{who}{n} because. {MARK} {who.lower()}{n}" for n in (1, 2, 3) for who in ("Pro", "Con")]
ANSWERS = [*ROUNDS, "ruling1", "ruling2", "Ada Torrin"]
SHELF = {
    Q: [passage(1), passage(2), passage(3), passage(4)],
    "Ada Torrin engineer": [passage(2), passage(5)],
    "harbour of Velm builder": [passage(6, "Ada built it.", "Velm")],
}


def query_round(objection: str, winner: str) -> list[str]:
    return ["It is enough.", f"It is not enough. {objection}", winner]


async def drag(replies: Sequence[str], **settings: Any) -> tuple[Trajectory, ScriptedEngine]:
    agent = engine([*replies])
    return await play({"name": "drag", "settings": settings}, agent, Shelf(SHELF)), agent


async def test_the_opponents_query_joins_the_pool_until_the_proponent_wins() -> None:
    replies = [*query_round(EXPAND, "Opponent"), *query_round(OPTIMISE, "The Proponent."), *ANSWERS]
    trajectory, agent = await drag(replies)
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
    assert [search.query for search in trajectory.searches] == [Q, "Ada Torrin engineer"]
    assert [p.id for p in trajectory.passages] == ["c1", "c2", "c3", "c5"], "each document once"
    assert trajectory.candidates == {"Proponent": "pro3", "Opponent": "con3"}
    check_snapshot("drag", agent)


@pytest.mark.parametrize("objection", [f"Query Expansion: {Q}", f"Query Optimization: {Q[:-1]} -> {Q}"])
async def test_a_query_that_is_in_the_pool_is_not_searched_again(objection: str) -> None:
    trajectory, agent = await drag([*query_round(objection, "Opponent") * 3, *ANSWERS])
    assert (len(trajectory.searches), len(agent.calls), trajectory.status) == (1, 18, "finished")


async def test_an_optimisation_replaces_the_query_nearest_to_the_one_it_names() -> None:
    nearly = "Query Optimization: ada torrin the engineer -> harbour of Velm builder"
    replies = [*query_round(EXPAND, "Opponent"), *query_round(nearly, "Opponent"), *ANSWERS]
    trajectory, agent = await drag(replies, query_rounds=2)
    assert [p.id for p in trajectory.passages] == ["c1", "c2", "c3", "c6"]
    assert "Query: Ada Torrin engineer" not in agent.calls[6].messages[-1]["content"]
    assert nearest_query({"Who built it?": [], "When was it built?": []}, "when was it") == "When was it built?"


async def test_an_opponent_who_wins_without_an_action_ends_the_stage_with_the_pool_as_it_is() -> None:
    trajectory, agent = await drag([*query_round("Look again!", "Opponent"), *ANSWERS])
    assert (trajectory.status, len(agent.calls), len(trajectory.searches)) == ("finished", 12, 1)
    assert [c.parse for c in trajectory.model_calls[:3]] == ["free", "malformed", "ok"]
    assert any(isinstance(event, Note) for event in trajectory.events)


async def test_a_judge_who_names_nobody_is_malformed_and_taken_for_the_opponent() -> None:
    trajectory, agent = await drag(
        [*query_round(EXPAND, "I cannot say."), *query_round(EXPAND, "Proponent, not Opponent"), *ANSWERS]
    )
    assert len(agent.calls) == 15 and len(trajectory.searches) == 2
    assert [c.parse for c in trajectory.model_calls if c.role == "judge"] == ["malformed", "malformed"]
