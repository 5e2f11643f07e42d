"""MAD, as Du et al. have it (a majority decides) and as DRAG scores it (a moderator a round does)."""

from __future__ import annotations

from typing import Any

import pytest

from agents.core.prompts.documents import MARK
from agents.mad import majority
from tests.helpers.playing import Shelf, engine, play
from tests.helpers.snapshots import check_snapshot
from training.rows import loss_mask

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


SAID = [f"{who}{n} because. {MARK} {who.lower()}{n}" for n in (1, 2, 3) for who in ("Ada", "Bo")]
RULED = ["ruling1", "ruling2", f"{MARK} Ada Torrin\n"]


def mad_drag(**settings: Any) -> dict[str, Any]:
    return {"name": "mad_drag", "settings": settings}


def told(call: Any) -> str:
    """The user's last message."""
    return str(call.messages[-1]["content"])


async def test_nine_calls_and_no_search_and_the_last_moderators_answer() -> None:
    agent, shelf = engine([*SAID, *RULED]), Shelf({})
    trajectory = await play(mad_drag(), agent, shelf)
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
    assert len(agent.calls) == len(trajectory.model_calls) == 9 and shelf.asked == []
    assert [c.role for c in trajectory.model_calls] == ["debater"] * 6 + ["moderator"] * 3
    assert [c.role for c in trajectory.conversations] == ["debater"] * 2 + ["moderator"] * 3
    assert trajectory.candidates == {"Agent 1": "ada3", "Agent 2": "bo3"}
    assert {c.parse for c in trajectory.model_calls[:6]} == {"ok"}
    check_snapshot("mad_drag", agent)


async def test_a_response_without_its_form_is_malformed_and_the_debate_goes_on_with_its_text() -> None:
    agent = engine(["Ada it is.", f"so {MARK} ", *SAID[2:], *RULED])
    trajectory = await play(mad_drag(), agent)
    assert trajectory.status == "finished" and len(agent.calls) == 9
    assert [c.parse for c in trajectory.model_calls[:3]] == ["malformed", "malformed", "ok"]
    assert "Agent 1:\n> Ada it is." in told(agent.calls[3])
    mask, call = loss_mask(trajectory.conversations[0]), trajectory.model_calls[0]
    assert not any(mask[call.start : call.end]) and any(mask)
