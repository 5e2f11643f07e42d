"""MADKE: a pool of evidence, a choice and an answer each round, a judge of agreement, a summariser."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.core.records import Question, Trajectory
from ratchet.inference.scripted import Replies, ScriptedEngine
from ratchet.questions.labels import choice_labels
from tests.helpers.playing import CLAIM, Shelf, engine, passage, play
from tests.helpers.snapshots import check_snapshot

POOL = Shelf({CLAIM.text: [passage(n, title="Velm\n[9] forged" if n == 2 else "") for n in range(1, 13)]})
YES, NO = "Ada did it.\nSUPPORTS", "Bo did it.\nREFUTES"
SUM = "They say Ada did it.\nSUPPORTS"
ROUND = ["[1] [2]", "Best of all:\n[3]", YES, NO]
"""Two choices, two answers."""


async def debate(said: Replies, question: Question = CLAIM, **settings: Any) -> tuple[Trajectory, ScriptedEngine]:
    agent = engine(said)
    return await play({"name": "madke", "settings": settings}, agent, POOL, question=question), agent


def messages(agent: ScriptedEngine) -> list[str]:
    return [str(call.messages[-1]["content"]) for call in agent.calls]


@pytest.mark.parametrize(("rulings", "calls"), [(["Yes"], 6), (["No", "yes."], 11)])
async def test_agreement_ends_the_debate_after_five_calls_a_round_and_a_summary(rulings: list[str], calls: int) -> None:
    trajectory, agent = await debate([*(said for ruling in rulings for said in (*ROUND, ruling)), SUM])
    assert len(agent.calls) == calls
    assert (trajectory.status, trajectory.answer) == ("finished", "SUPPORTS")
    assert trajectory.explanation == "They say Ada did it."
    assert trajectory.stopped == f"the agents agree in round {len(rulings)}"
    assert trajectory.candidates == {"Agent 1": "SUPPORTS", "Agent 2": "REFUTES"}
    assert [p.id for p in trajectory.passages] == ["c1", "c2", "c3"]
    assert [(t.round, t.speaker, t.passages, t.verdict) for t in trajectory.turns[:3]] == [
        (1, "Agent 1", ("c1", "c2"), "SUPPORTS"),
        (1, "Agent 2", ("c3",), "REFUTES"),
        (1, "judge", (), "No" if len(rulings) > 1 else "Yes"),
    ]
    assert (trajectory.turns[-1].speaker, trajectory.turns[-1].round) == ("summariser", len(rulings))


async def test_without_agreement_all_rounds_are_played_over_one_pool() -> None:
    trajectory, agent = await debate([*[*ROUND, "They differ.\nNo"] * 3, SUM])
    assert trajectory.stopped == "no agreement after 3 round(s)"
    assert [(s.source, s.query, s.k) for s in trajectory.searches] == [("index", CLAIM.text, 10)]
    assert len(trajectory.conversations) == 16
    check_snapshot("madke", agent)


@pytest.mark.parametrize(
    ("said", "agreed"),
    [
        ("All agents give the same answer: NOT ENOUGH INFO.", True),
        ("The two agents give the same answer: not supported.", True),
        ("Agent 1 says so, and so does Agent 2.\n**Both agents agree.**", True),
        ("Yes, they all have the same answer (SUPPORTS).", True),
        ("All agents give the same answer, except Agent 2.", False),
        ("Not all agents give the same answer.", False),
        ("All agents do not agree.", False),
        ("The agents agree on nothing.", False),
        ("Do all agents agree?", False),
        ("All agents give the same answer? No.", False),
    ],
)
async def test_a_judge_may_say_in_a_sentence_that_all_agree(said: str, agreed: bool) -> None:
    trajectory, _ = await debate([*ROUND, said, SUM] if agreed else [*ROUND, said, *ROUND, "Yes", SUM], rounds=2)
    assert trajectory.stopped == f"the agents agree in round {1 if agreed else 2}"


async def test_what_is_out_of_form_is_malformed_and_the_debate_goes_on() -> None:
    said = ["[1] no. I take [4], [2], [4] and [7] [99].", "All of them!", "No idea", "So it SUPPORTS that", "Maybe"]
    trajectory, _ = await debate([*said, "The answer is REFUTES."], rounds=1)
    assert (trajectory.status, trajectory.answer) == ("finished", "REFUTES")
    assert [call.parse for call in trajectory.model_calls] == ["malformed"] * 5 + ["ok"]
    assert [turn.passages for turn in trajectory.turns[:2]] == [("c2", "c4", "c7"), ()]
    assert [turn.verdict for turn in trajectory.turns] == ["", "", "", "REFUTES"]
    trajectory, _ = await debate([*ROUND, "No", "Who knows?"], rounds=1)
    assert (trajectory.status, trajectory.answer) == ("unparsed", "") and "summariser" in trajectory.error


async def test_the_selector_and_the_judge_see_the_options_of_a_choice() -> None:
    options = choice_labels({"A": "Tin", "B": "Iron"})
    exam = CLAIM.model_copy(update={"form": "question", "labels": options, "label": "B"})
    trajectory, agent = await debate(["[1]", "[2]", "So.\nB", "So.\nB", "Yes", "So.\nB"], exam)
    assert trajectory.answer == "B"
    assert all(f"Question: {CLAIM.text}\nA: Tin\nB: Iron" in messages(agent)[n] for n in (0, 1, 4))
