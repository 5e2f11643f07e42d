"""Zero-shot chain of thought, in one call or two, and direct prompting: a label of the task."""

from __future__ import annotations

import pytest

from questions.labels import choice_labels
from ratchet.records import Question
from tests.helpers.playing import CLAIM, Shelf, engine, passage, play
from tests.helpers.snapshots import check_snapshot

COT = {"name": "cot"}
EXAM = Question(id="m1", text="Which metal does rust?", labels=choice_labels({"A": "Tin", "B": "Iron"}), label="B")


async def test_one_call_gives_the_label_and_its_reasons() -> None:
    agent, shelf = engine(["Ada was an engineer.\nShe built it.\nSupports."]), Shelf({})
    trajectory = await play(COT, agent, shelf, question=CLAIM)
    assert (trajectory.status, trajectory.answer) == ("finished", "SUPPORTS")
    assert trajectory.explanation == trajectory.response == "Ada was an engineer.\nShe built it."
    assert len(agent.calls) == 1 and shelf.asked == [] and trajectory.passages == ()
    assert [call.parse for call in trajectory.model_calls] == ["ok"]
    check_snapshot("cot", agent)


async def test_documents_for_the_question_are_shown_above_it() -> None:
    agent, shelf = engine(["It says so.\nSUPPORTS"]), Shelf({CLAIM.text: [passage(1, "Ada built it."), passage(2)]})
    trajectory = await play({**COT, "settings": {"documents": 2}}, agent, shelf, question=CLAIM)
    assert [one.id for one in trajectory.passages] == ["c1", "c2"] and shelf.asked == [(CLAIM.text, 2, 0)]
    check_snapshot("cot_documents", agent)


async def test_with_extraction_the_label_is_drawn_out_of_the_thoughts_in_a_second_call() -> None:
    agent = engine(["Tin does not rust. Iron does.", "B: Iron"])
    trajectory = await play({**COT, "settings": {"extraction": True}}, agent, question=EXAM)
    assert (trajectory.answer, trajectory.explanation) == ("B", "Tin does not rust. Iron does.")
    assert [call.parse for call in trajectory.model_calls] == ["free", "ok"] and len(trajectory.conversations) == 1
    check_snapshot("cot_extraction", agent)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Nobody built it. So the answer is REFUTES.", "REFUTES"),
        ("**Verdict:** Refuted\n\nNobody built it.", "REFUTES"),
        ("Nobody built it, which refutes the claim", ""),
        ("SUPPORTS / REFUTES / NOT ENOUGH INFO", ""),
        ("", ""),
    ],
)
async def test_a_label_in_a_form_is_the_answer_and_text_without_one_is_malformed(said: str, answer: str) -> None:
    trajectory = await play(COT, engine([said]), question=CLAIM)
    assert (trajectory.answer, trajectory.status) == (answer, "finished" if answer else "unparsed")
    assert [call.parse for call in trajectory.model_calls] == ["ok" if answer else "malformed"]
    assert bool(trajectory.error) == (not answer)


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
