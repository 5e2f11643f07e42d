"""The baselines that read once or round by round: what they are shown, and how their answer is read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.playing import QUESTION, Shelf, engine, passage, play, say
from tests.helpers.snapshots import check_snapshot

Q = QUESTION.text
ONCE = {Q: [passage(n, f"fact {n}", f"Page {n}") for n in range(1, 6)]}
ROUNDS = {
    Q: [passage(n) for n in range(1, 6)],
    f"{Q} The answer is: Ada": [passage(n) for n in (3, 4, 5)],
    f"{Q} Ada T.": [passage(n) for n in (6, 7, 8)],
}
ROUNDS_SAID = ["The answer is: Ada", "Ada T.", "So. The answer is: Ada Torrin"]
BRIEF: dict[str, Any] = {"style": "brief"}
MRAGS = {Q: [passage(1, "Ada Torrin built it.", "Velm"), passage(2), passage(3)]}


@pytest.mark.parametrize(
    ("name", "settings", "said", "found", "k", "read"),
    [
        ("naive_gen", {}, [" Ada Torrin\n"], {}, 0, []),
        ("naive_rag", {}, ["Ada Torrin"], ONCE, 3, ["c1", "c2", "c3"]),
        ("iter_retgen", {}, ROUNDS_SAID, ROUNDS, 3, ["c6", "c7", "c8"]),
        ("no_retrieval", {}, [" Ada Torrin\n"], {}, 0, []),
        ("no_retrieval", BRIEF, [" Ada Torrin\n"], {}, 0, []),
        ("vanilla_rag", {}, [say(response="Ada Torrin")], MRAGS, 2, ["c1", "c2"]),
        ("vanilla_rag", BRIEF, [say(answer="Ada Torrin")], MRAGS, 2, ["c1", "c2"]),
    ],
)
async def test_each_reads_what_its_queries_found_and_answers(
    name: str, settings: dict[str, Any], said: list[str], found: dict[str, Any], k: int, read: list[str]
) -> None:
    """In rounds, a query is the question and the last raw output."""
    agent, shelf = engine(said), Shelf(found)
    trajectory = await play({"name": name, "settings": settings}, agent, shelf)
    assert (trajectory.answer, trajectory.status) == ("Ada Torrin", "finished")
    assert shelf.asked == [(query, k, 0) for query in found] and [p.id for p in trajectory.passages] == read
    style = f"_{settings.get('style', 'paper')}" if name in ("no_retrieval", "vanilla_rag") else ""
    check_snapshot(f"{name}{style}", agent)


@pytest.mark.parametrize("name", ["naive_gen", "naive_rag"])
@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("I think so. The answer is: Ada Torrin", "Ada Torrin"),
        ("Ada Torrin\nand others", "Ada Torrin\nand others"),
        ("", ""),
        ("The answer is:", ""),
        ("<|im_end|><|im_start|>user", "<|im_end|><|im_start|>user"),
    ],
)
async def test_the_answer_is_what_follows_the_words_else_all(name: str, said: str, answer: str) -> None:
    trajectory = await play({"name": name}, engine([said]), Shelf(ONCE))
    assert (trajectory.answer, trajectory.status) == (answer, "finished")


@pytest.mark.parametrize("name", ["naive_gen", "naive_rag", "iter_retgen", "awe", "ircot"])
async def test_an_answer_behind_the_words_of_drags_script_is_asked_for_and_read(name: str) -> None:
    said = "It was built long ago. The answer is: Ada Torrin"
    replies = {"awe": [said] * 4 + [">>> So it is. <<<"] * 2 + ["Ada Torrin"], "ircot": ["It is old.", said]}
    agent = engine(replies.get(name, [said] * 3))
    trajectory = await play({"name": name, "settings": {"answer_form": "marked"}}, agent, Shelf(ONCE))
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
    systems = [call.messages[0]["content"] for call in agent.calls if call.messages[0]["content"].startswith("Answer")]
    readers = [text for text in systems if "step by step" not in text]
    assert readers and all('End with "The answer is:"' in text and "answer alone" not in text for text in readers)


async def test_an_empty_output_leaves_the_question_as_the_query() -> None:
    trajectory = await play({"name": "iter_retgen"}, engine(["", "", ""]), Shelf({}))
    assert [search.query for search in trajectory.searches] == [Q, Q, Q]
    assert (trajectory.answer, trajectory.status) == ("", "finished")
