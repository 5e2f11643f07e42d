"""MAD (Du): six calls, each agent reads the others' last answers, and the majority decides."""

from __future__ import annotations

import pytest

from agents.core.prompts.documents import MARK
from agents.mad import majority
from tests.helpers.playing import Shelf, engine, play
from tests.helpers.snapshots import check_snapshot

FIRST = [f"one. {MARK} Ada", f"two. {MARK} Bo", f"three. {MARK} Cy"]


def last(*answers: str) -> list[str]:
    return [f"Now {answer}. {MARK} {answer}" for answer in answers]


async def test_six_calls_no_search_and_the_majoritys_answer() -> None:
    agent, shelf = engine([*FIRST, *last("Cy", "Ada Torrin", "the ada torrin.")]), Shelf({})
    trajectory = await play({"name": "mad"}, agent, shelf)
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
    assert len(agent.calls) == len(trajectory.model_calls) == 6 and shelf.asked == []
    assert trajectory.candidates == {"Agent 1": "Cy", "Agent 2": "Ada Torrin", "Agent 3": "the ada torrin."}
    check_snapshot("mad", agent)


async def test_who_leaves_the_form_out_is_malformed_and_votes_with_all_it_said() -> None:
    trajectory = await play({"name": "mad"}, engine([*FIRST, "Bo.", "bo", *last("Ada")]))
    assert (trajectory.status, trajectory.answer) == ("finished", "Bo.")
    assert [c.parse for c in trajectory.model_calls] == ["ok", "ok", "ok", "malformed", "malformed", "ok"]


@pytest.mark.parametrize(
    ("answers", "winner"),
    [
        (["Ada", "Bo", "bo!"], "Bo"),
        (["Ada", "Bo", "Cy"], "Ada"),
        (["Cy", "Bo", "the cy", "a Bo"], "Cy"),
        (["", "  ", "Bo"], "Bo"),
        (["", ".", "."], "."),
        (["B", "A", "A."], "A"),
        (["O'Malley", "Bo", "O\u2019Malley"], "O'Malley"),
        (["", "Ada", "Bo", "Bo"], "Bo"),
    ],
)
def test_a_tie_goes_to_the_earliest_and_silence_has_no_vote(answers: list[str], winner: str) -> None:
    assert majority(answers) == winner
