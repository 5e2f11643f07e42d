"""MAD (Liang): two sides, a moderator who may end each round, and a judge when none did."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.agents.mad_liang import LEVELS
from ratchet.core.records import Trajectory
from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.playing import CLAIM, engine, play
from tests.helpers.snapshots import check_snapshot

YES, NO = "Ada did it.\nSUPPORTS", "Bo did it.\nREFUTES"
OPEN = "Both may be right.\nNO PREFERENCE"


def rounds(*moderator: str) -> list[str]:
    return [said for n, ruling in enumerate(moderator, 1) for said in (f"{n}+ {YES}", f"{n}- {NO}", ruling)]


async def debate(said: list[str], **settings: Any) -> tuple[Trajectory, ScriptedEngine]:
    agent = engine(said)
    trajectory = await play({"name": "mad_liang", "settings": settings}, agent, question=CLAIM)
    assert len(agent.calls) == len(said)
    return trajectory, agent


def message(agent: ScriptedEngine, call: int) -> str:
    return str(agent.calls[call].messages[-1]["content"])


@pytest.mark.parametrize("number", [1, 3])
async def test_the_moderator_may_end_the_debate_in_any_round(number: int) -> None:
    trajectory, _ = await debate(rounds(*[OPEN] * (number - 1), "The pages say so.\nRefutes."))
    assert (trajectory.status, trajectory.answer) == ("finished", "REFUTES")
    assert trajectory.explanation == "The pages say so."
    assert trajectory.stopped == f"the moderator decided in round {number}"
    assert trajectory.candidates == {"affirmative": "SUPPORTS", "negative": "REFUTES"}
    assert [(t.round, t.speaker, t.verdict) for t in trajectory.turns[-3:]] == [
        (number, "affirmative", "SUPPORTS"),
        (number, "negative", "REFUTES"),
        (number, "moderator", "REFUTES"),
    ]


async def test_after_three_rounds_a_judge_who_reads_the_whole_debate_decides() -> None:
    said = rounds(OPEN, OPEN, OPEN)
    said[6] = "3+ I give in.\nREFUTES"
    trajectory, agent = await debate([*said, "SUPPORTS and REFUTES", "Ada it is.\nSUPPORTS"])
    assert (trajectory.status, trajectory.answer, trajectory.explanation) == ("finished", "SUPPORTS", "Ada it is.")
    assert trajectory.stopped == "no preference after 3 round(s): the judge decided"
    assert trajectory.candidates == {"affirmative": "REFUTES", "negative": "REFUTES"}
    assert [turn.speaker for turn in trajectory.turns].count("judge") == 1
    assert [word in message(agent, 9) for word in ("1+", "1-", "2+", "3-")] == [True] * 4
    check_snapshot("mad_liang", agent)


async def test_as_in_the_published_code_the_judge_reads_the_first_round_alone() -> None:
    said = rounds(OPEN, OPEN)
    said[3] = "2+ I give in.\nREFUTES"
    trajectory, agent = await debate([*said, "REFUTES", NO], rounds=2, judge_reads="first")
    assert [word in message(agent, 6) for word in ("1+", "1-", "2+", "2-")] == [True, True, False, False]
    assert trajectory.candidates == {"affirmative": "SUPPORTS", "negative": "REFUTES"}


@pytest.mark.parametrize(
    "ruling", ["", "SUPPORTS / REFUTES / NOT ENOUGH INFO / NO PREFERENCE", "I have no preference."]
)
async def test_a_ruling_that_is_not_clear_lets_the_debate_go_on(ruling: str) -> None:
    trajectory, _ = await debate(rounds(ruling, YES))
    assert (trajectory.answer, len(trajectory.model_calls)) == ("SUPPORTS", 6)
    assert [c.parse for c in trajectory.model_calls if c.role == "moderator"] == ["malformed", "ok"]


async def test_a_side_out_of_form_is_malformed_and_is_heard_all_the_same() -> None:
    trajectory, agent = await debate(["I would not know.", "The answer is REFUTES.", YES])
    assert "I would not know." in message(agent, 1) and "I would not know." in message(agent, 2)
    assert trajectory.candidates == {"affirmative": "", "negative": "REFUTES"}
    assert [c.parse for c in trajectory.model_calls] == ["malformed", "ok", "ok"]


async def test_the_level_says_how_much_the_sides_disagree() -> None:
    _, agent = await debate(rounds(YES), level=3)
    for call in agent.calls[:2]:
        assert [rule in str(call.messages[0]["content"]) for rule in LEVELS] == [False, False, False, True]
