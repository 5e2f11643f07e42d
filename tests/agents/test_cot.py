"""Zero-shot chain of thought and direct prompting: a label of the task in one call."""

from __future__ import annotations

import pytest

from tests.helpers.playing import CLAIM, Shelf, engine, passage, play
from tests.helpers.snapshots import check_snapshot

COT = {"name": "cot"}
DIRECT = {"name": "direct"}


async def test_one_call_gives_the_label_and_its_reasons() -> None:
    agent = engine(["Ada was an engineer.\nShe built it.\nSupports."])
    trajectory = await play(COT, agent, question=CLAIM)
    assert (trajectory.status, trajectory.answer) == ("finished", "SUPPORTS")
    assert trajectory.explanation == trajectory.response == "Ada was an engineer.\nShe built it."
    check_snapshot("cot", agent)


async def test_documents_for_the_question_are_shown_above_it() -> None:
    agent, shelf = engine(["It says so.\nSUPPORTS"]), Shelf({CLAIM.text: [passage(1, "Ada built it."), passage(2)]})
    trajectory = await play({**COT, "settings": {"documents": 2}}, agent, shelf, question=CLAIM)
    assert [one.id for one in trajectory.passages] == ["c1", "c2"] and shelf.asked == [(CLAIM.text, 2, 0)]
    check_snapshot("cot_documents", agent)


async def test_direct_prompting_gives_the_label_alone() -> None:
    agent = engine(["**Supports**"])
    trajectory = await play(DIRECT, agent, question=CLAIM)
    assert (trajectory.status, trajectory.answer, trajectory.explanation) == ("finished", "SUPPORTS", "")
    check_snapshot("direct", agent)


@pytest.mark.parametrize(
    ("config", "said", "answer", "parse"),
    [
        (COT, "Nobody built it. So the answer is REFUTES.", "REFUTES", "ok"),
        (COT, "**Verdict:** Refuted\n\nNobody built it.", "REFUTES", "ok"),
        (COT, "Nobody built it, which refutes the claim", "", "malformed"),
        (COT, "SUPPORTS / REFUTES / NOT ENOUGH INFO", "", "malformed"),
        (COT, "", "", "malformed"),
        (DIRECT, "SUPPORTS", "SUPPORTS", "ok"),
        (DIRECT, "Ada built it.\nSUPPORTS", "SUPPORTS", "malformed"),
        (DIRECT, "Who knows?", "", "malformed"),
    ],
)
async def test_a_label_in_a_form_is_the_answer_and_text_without_one_is_unparsed(
    config: dict[str, str], said: str, answer: str, parse: str
) -> None:
    trajectory = await play(config, engine([said]), question=CLAIM)
    assert (trajectory.answer, trajectory.status) == (answer, "finished" if answer else "unparsed")
    assert [call.parse for call in trajectory.model_calls] == [parse] and bool(trajectory.error) == (not answer)
