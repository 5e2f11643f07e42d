"""MAD as DRAG scores it: nine calls, who reads whom, and what is made of responses that lack their form."""

from __future__ import annotations

from typing import Any

import pytest

from agents.core.prompts.documents import MARK
from ratchet.errors import UserError
from tests.helpers.playing import QUESTION, Shelf, engine, play
from tests.helpers.snapshots import check_snapshot
from training.rows import loss_mask

SAID = [f"{who}{n} because. {MARK} {who.lower()}{n}" for n in (1, 2, 3) for who in ("Ada", "Bo")]
RULED = ["ruling1", "ruling2", f"{MARK} Ada Torrin\n"]


def mad(**settings: Any) -> dict[str, Any]:
    return {"name": "mad_drag", "settings": settings}


def told(call: Any) -> str:
    """The user's last message."""
    return str(call.messages[-1]["content"])


async def test_nine_calls_and_no_search_and_the_last_moderators_answer() -> None:
    agent, shelf = engine([*SAID, *RULED]), Shelf({})
    trajectory = await play(mad(), agent, shelf)
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
    assert len(agent.calls) == len(trajectory.model_calls) == 9 and shelf.asked == []
    assert [c.role for c in trajectory.model_calls] == ["debater"] * 6 + ["moderator"] * 3
    assert [c.role for c in trajectory.conversations] == ["debater"] * 2 + ["moderator"] * 3
    assert trajectory.candidates == {"Agent 1": "ada3", "Agent 2": "bo3"}
    assert {c.parse for c in trajectory.model_calls[:6]} == {"ok"}
    check_snapshot("mad_drag", agent)


async def test_an_agent_reads_the_others_last_response_in_a_dialogue_that_grows() -> None:
    agent = engine([*SAID, *RULED])
    await play(mad(), agent)
    first, last = agent.calls[:2], agent.calls[4:6]
    assert all(told(call) == f"Question: {QUESTION.text}" for call in first)
    assert "Bo2" in told(last[0]) and "Ada2" in told(last[1])
    assert not any(word in told(last[0]) for word in ("Ada", "Bo1", "ruling"))
    assert not any(word in told(last[1]) for word in ("Bo", "Ada1", "ruling"))
    assert all(QUESTION.text in told(call) for call in last)
    for before, after in zip(agent.calls[:4], agent.calls[2:6], strict=True):
        assert after.prompt[: len(before.prompt)] == before.prompt


async def test_each_moderator_sees_its_own_round_alone() -> None:
    agent = engine([*SAID, *RULED])
    await play(mad(), agent)
    for number, call in enumerate(agent.calls[6:], 1):
        assert len(call.messages) == 2 and QUESTION.text in told(call)
        assert f"Agent 1:\n> Ada{number}" in told(call) and f"Agent 2:\n> Bo{number}" in told(call)
        assert told(call).count("Agent") == 2


async def test_the_agents_of_a_round_speak_at_once_and_so_do_the_moderators() -> None:
    agent = engine(lambda *_: f"{MARK} Ada")
    agent.delay = 0.01
    await play(mad(), agent)
    assert agent.max_running == 3
    agent = engine(lambda *_: f"{MARK} Ada")
    agent.delay = 0.01
    await play(mad(agents=4, rounds=1), agent)
    assert agent.max_running == 4 and len(agent.calls) == 5


async def test_a_response_without_its_form_is_malformed_and_the_debate_goes_on_with_its_text() -> None:
    agent = engine(["Ada it is.", f"so {MARK} ", *SAID[2:], *RULED])
    trajectory = await play(mad(), agent)
    assert trajectory.status == "finished" and len(agent.calls) == 9
    assert [c.parse for c in trajectory.model_calls[:3]] == ["malformed", "malformed", "ok"]
    assert "Agent 1:\n> Ada it is." in told(agent.calls[3])
    mask, call = loss_mask(trajectory.conversations[0]), trajectory.model_calls[0]
    assert not any(mask[call.start : call.end]) and any(mask)


@pytest.mark.parametrize("settings", [{"agents": 1}, {"rounds": 0}, {"round": 2}])
async def test_settings_that_make_no_debate_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        await play(mad(**settings), engine([]))
