"""SuRe: its seven calls, who sees what, how the scores add up, and what becomes of text that is not in its form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ratchet.agents.sure import PROPOSE, RANK, SUMMARIZE, VALIDATE
from ratchet.inference.scripted import ScriptedEngine
from tests.helpers.playing import QUESTION, Shelf, engine, passage, play
from tests.helpers.snapshots import check_snapshot

SHELF = {QUESTION.text: [passage(n) for n in range(1, 6)]}
SURE = {"name": "sure"}


def scripted(
    proposal: str = "(a) Ada Torrin (b) Bo Lind",
    valid: tuple[str, str] = ("True", "True"),
    ranked: tuple[str, str] = ("Passage 1", "Passage 2"),
) -> ScriptedEngine:
    """`valid` of the first and second candidate; `ranked`: the first candidate's summary comes first, then second."""

    def reply(_prompt: str, _params: Any, messages: Sequence[Any]) -> str:
        system, user = messages[0]["content"], messages[-1]["content"]
        if system == PROPOSE:
            return proposal
        if system == SUMMARIZE:
            return "praise of Ada" if "Answer: Ada Torrin" in user else "praise of Bo"
        if system == VALIDATE:
            return valid[0] if "Answer: Ada Torrin" in user else valid[1]
        assert system == RANK
        return ranked[0] if "Passage 1: praise of Ada" in user else ranked[1]

    return engine(reply)


async def test_two_candidates_are_summarised_validated_and_ranked() -> None:
    agent, shelf = scripted(), Shelf(SHELF)
    trajectory = await play(SURE, agent, shelf)
    assert (trajectory.answer, trajectory.status) == ("Ada Torrin", "finished")
    assert trajectory.candidates == {"first": "Ada Torrin", "second": "Bo Lind"}
    assert shelf.asked == [(QUESTION.text, 3, 0)] and [p.id for p in trajectory.passages] == ["c1", "c2", "c3"]
    assert [call.parse for call in trajectory.model_calls] == ["ok", "free", "free", *["ok"] * 4]
    check_snapshot("sure", agent)


@pytest.mark.parametrize(
    ("valid", "ranked", "first", "second", "malformed"),
    [
        (("True", "False"), ("Passage 1", "Passage 2"), 2, 0, 0),
        (("False", "True"), ("Passage 2", "Passage 1"), 0, 2, 0),
        (("True", "True"), ("Passage 2", "Passage 1"), 1, 2, 0),
        (("True", "False"), ("Passage 2", "Passage 1"), 1, 1, 0),
        (("True", "True"), ("Passage 1", "Passage 1"), 2, 2, 0),
        (("It is not true.", "True"), ("Passage 1", "Passage 1"), 1, 2, 1),
        (("That is untrue.", "True, as it says."), ("Passage 1 helps more.", "Passage 1"), 1, 2, 1),
        (("False", "False"), ("Passage 2", "neither"), 0, 0.5, 1),
        (("maybe", "true."), ("Passage 1 or Passage 2", "[passage 2]"), 0.5, 1, 2),
        (("True or False", ""), ("", "Passage 1"), 0.5, 1, 3),
        (("maybe", "True"), ("both", "Passage 3"), 0.5, 1.5, 3),
    ],
)
async def test_the_score_is_validation_plus_ranking_and_a_tie_goes_to_the_first(
    valid: tuple[str, str], ranked: tuple[str, str], first: float, second: float, malformed: int
) -> None:
    trajectory = await play(SURE, scripted(valid=valid, ranked=ranked), Shelf(SHELF))
    assert trajectory.answer == ("Ada Torrin" if first >= second else "Bo Lind")
    assert trajectory.status == "finished"
    notes = [event.text for event in trajectory.events if event.kind == "note"]
    assert notes == [f"first candidate {first:g}, second candidate {second:g}"]
    assert [call.parse for call in trajectory.model_calls].count("malformed") == malformed


@pytest.mark.parametrize(
    ("said", "candidates"),
    [
        ("(a) Ada Torrin (b) Bo Lind", ("Ada Torrin", "Bo Lind")),
        ("Here:\n(A) Ada Torrin,\n(B) Bo Lind\n\nBoth fit.", ("Ada Torrin", "Bo Lind")),
        ("(b) Bo (c) Cy (a) Ada", ("Bo", "Ada")),
        ("(a) Ada (b) ada", ("Ada",)),
        ("(a) Ada", ("Ada",)),
        ("(a) (b) Bo", ("Bo",)),
        ("It is said. The answer is: Ada", ("Ada",)),
        ("", ("",)),
        ("(a)", ("(a)",)),
    ],
)
async def test_candidates_out_of_any_text_of_which_a_single_one_is_the_answer(
    said: str, candidates: tuple[str, ...]
) -> None:
    trajectory = await play(SURE, scripted(proposal=said), Shelf(SHELF))
    assert (trajectory.status, tuple(trajectory.candidates.values())) == (
        "finished" if said else "unparsed",
        candidates,
    )
    parses = [call.parse for call in trajectory.model_calls]
    assert len(parses) == 7 if len(candidates) == 2 else (trajectory.answer, parses) == (candidates[0], ["malformed"])
