"""Iter-RetGen: what is searched with, and that a round sees its own documents alone."""

from __future__ import annotations

from tests.helpers.playing import QUESTION, Shelf, engine, passage, play
from tests.helpers.snapshots import check_snapshot

Q = QUESTION.text
SHELF = {
    Q: [passage(n) for n in range(1, 6)],
    f"{Q} The answer is: Ada": [passage(n) for n in (3, 4, 5)],
    f"{Q} Ada T.": [passage(n) for n in (6, 7, 8)],
}
SAID = ["The answer is: Ada", "Ada T.", "So. The answer is: Ada Torrin"]


async def test_three_rounds_each_search_with_the_question_and_the_last_raw_output() -> None:
    agent, shelf = engine(SAID), Shelf(SHELF)
    trajectory = await play({"name": "iter_retgen"}, agent, shelf)
    assert (trajectory.answer, trajectory.status) == ("Ada Torrin", "finished")
    assert shelf.asked == [(query, 3, 0) for query in SHELF]
    assert len(agent.calls) == 3
    assert [p.id for p in trajectory.passages] == ["c6", "c7", "c8"]
    check_snapshot("iter_retgen", agent)


async def test_an_empty_output_leaves_the_question_as_the_query() -> None:
    shelf = Shelf({})
    trajectory = await play({"name": "iter_retgen"}, engine(["", "", ""]), shelf)
    assert [query for query, _, _ in shelf.asked] == [Q, Q, Q]
    assert (trajectory.answer, trajectory.status) == ("", "finished")
