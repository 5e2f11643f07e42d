"""MAD, as Du et al. have it (a majority decides) and as DRAG scores it (a moderator a round does)."""

from __future__ import annotations

import pytest

from ratchet.agents.core.prompts import MARK
from ratchet.agents.debates import majority
from ratchet.training.rows import loss_mask
from tests.helpers.playing import engine, play
from tests.helpers.snapshots import check_snapshot

FIRST = [f"one. {MARK} Ada", f"two. {MARK} Bo", f"three. {MARK} Cy"]
SAID = [f"{who}{n} because. {MARK} {who.lower()}{n}" for n in (1, 2, 3) for who in ("Ada", "Bo")]
RULED = ["ruling1", "ruling2", f"{MARK} Ada Torrin\n"]


async def test_the_majoritys_answer_counts() -> None:
    agent = engine([*FIRST, *(f"Now. {MARK} {answer}" for answer in ("Cy", "Ada Torrin", "the ada torrin."))])
    trajectory = await play({"name": "mad"}, agent)
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
    assert trajectory.candidates == {"Agent 1": "Cy", "Agent 2": "Ada Torrin", "Agent 3": "the ada torrin."}
    check_snapshot("mad", agent)


async def test_who_leaves_the_form_out_is_malformed_and_votes_with_all_it_said() -> None:
    trajectory = await play({"name": "mad"}, engine([*FIRST, "Bo.", "bo", f"{MARK} Ada"]))
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
        (["O'Malley", "Bo", "O\u2019Malley"], "O'Malley"),
    ],
)
def test_a_tie_goes_to_the_earliest_and_silence_has_no_vote(answers: list[str], winner: str) -> None:
    assert majority(answers) == winner


async def test_the_last_moderators_answer_counts() -> None:
    agent = engine([*SAID, *RULED])
    trajectory = await play({"name": "mad_drag"}, agent)
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
    assert [c.role for c in trajectory.conversations] == ["debater"] * 2 + ["moderator"] * 3
    assert trajectory.candidates == {"Agent 1": "ada3", "Agent 2": "bo3"}
    check_snapshot("mad_drag", agent)


async def test_a_response_without_its_form_is_malformed_and_the_debate_goes_on_with_its_text() -> None:
    agent = engine(["Ada it is.", f"so {MARK} ", *SAID[2:], *RULED])
    trajectory = await play({"name": "mad_drag"}, agent)
    assert trajectory.status == "finished" and len(agent.calls) == 9
    assert [c.parse for c in trajectory.model_calls[:3]] == ["malformed", "malformed", "ok"]
    assert "Agent 1:\n> Ada it is." in agent.calls[3].messages[-1]["content"]
    mask, call = loss_mask(trajectory.conversations[0]), trajectory.model_calls[0]
    assert not any(mask[call.start : call.end]) and any(mask)
