"""MAD (Du): six calls, each agent reads the others' last answers, and the majority decides."""

from __future__ import annotations

from typing import Any

import pytest

from agents.core.prompts.documents import MARK
from agents.mad import majority
from ratchet.errors import UserError
from tests.helpers.playing import QUESTION, Shelf, engine, play
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


async def test_each_agent_reads_the_others_and_not_itself() -> None:
    agent = engine([*FIRST, *last("Ada", "Ada", "Ada")])
    await play({"name": "mad"}, agent)
    said = ["one.", "two.", "three."]
    for n in range(3):
        assert agent.calls[n].messages[-1]["content"] == f"Question: {QUESTION.text}"
        message = agent.calls[3 + n].messages[-1]["content"]
        assert [words in message for words in said] == [n != other for other in range(3)]
        assert agent.calls[3 + n].prompt[: len(agent.calls[n].prompt)] == agent.calls[n].prompt


async def test_a_rounds_agents_speak_at_once() -> None:
    agent = engine(lambda *_: f"{MARK} Ada")
    agent.delay = 0.01
    await play({"name": "mad", "settings": {"agents": 5, "rounds": 3}}, agent)
    assert agent.max_running == 5 and len(agent.calls) == 15


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


@pytest.mark.parametrize("settings", [{"agents": 1}, {"rounds": 0}])
async def test_settings_that_make_no_debate_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(settings))):
        await play({"name": "mad", "settings": settings}, engine([]))
