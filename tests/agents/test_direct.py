"""Direct prompting of a label task: one call, a label and nothing else."""

from __future__ import annotations

import pytest

from questions.labels import choice_labels
from ratchet.records import Question
from tests.helpers.playing import CLAIM, Shelf, engine, play
from tests.helpers.snapshots import check_snapshot

EXAM = Question(id="m1", text="Which metal does rust?", labels=choice_labels({"A": "Tin", "B": "Iron"}), label="B")


async def test_one_call_gives_the_label() -> None:
    agent, shelf = engine(["**Supports**"]), Shelf({})
    trajectory = await play({"name": "direct"}, agent, shelf, question=CLAIM)
    assert (trajectory.status, trajectory.answer, trajectory.explanation) == ("finished", "SUPPORTS", "")
    assert len(agent.calls) == 1 and shelf.asked == []
    assert [call.parse for call in trajectory.model_calls] == ["ok"]
    check_snapshot("direct", agent)


async def test_the_options_of_a_choice_are_shown_with_examples_too() -> None:
    agent = engine(["B: Iron"])
    trajectory = await play({"name": "direct", "settings": {"examples": True}}, agent, question=EXAM)
    assert trajectory.answer == "B" and "B: Iron" in agent.calls[0].messages[0]["content"]
    assert [message["content"] for message in agent.calls[0].messages if message["role"] == "assistant"] == ["B", "A"]


@pytest.mark.parametrize(
    ("said", "answer", "status"),
    [("Ada built it.\nSUPPORTS", "SUPPORTS", "finished"), ("Who knows?", "", "unparsed")],
)
async def test_more_than_a_label_is_malformed(said: str, answer: str, status: str) -> None:
    trajectory = await play({"name": "direct"}, engine([said]), question=CLAIM)
    assert (trajectory.answer, trajectory.status) == (answer, status)
    assert [call.parse for call in trajectory.model_calls] == ["malformed"]
