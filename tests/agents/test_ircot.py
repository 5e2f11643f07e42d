"""IRCoT: each sentence of reasoning is the next query; a reader answers from what was found."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.core.config import load_config
from ratchet.core.records import Passage, Trajectory
from ratchet.inference.scripted import ScriptedEngine
from ratchet.training.rows import build_rows, check_rows
from tests.helpers.playing import QUESTION, Shelf, engine, passage, play
from tests.helpers.snapshots import check_snapshot

HARBOUR = Passage(id="c1", document_id="d1", title="Harbour of Velm", text="The harbour has a mole by Ada Torrin.")
MOLE = Passage(id="c2", document_id="d2", title="Mole of Velm", text="The mole was the first part of it.")
TORRIN = Passage(id="c3", document_id="d3", title="Ada Torrin", text="Ada Torrin was an engineer.")
WORLD = {
    QUESTION.text: [HARBOUR],
    "The harbour has a mole.": [HARBOUR, MOLE],
    "The mole is by Ada Torrin.": [TORRIN, MOLE],
}
FACTS = {f"Fact {n} is so.": [passage(3 * n + i) for i in range(1, 4)] for n in range(1, 6)}
"""Three new paragraphs for every thought."""
FACTS_SAID = ["Fact 1 is so. X", *(f" Fact {n} is so. X" for n in range(2, 6)), "Ada"]


async def ircot(
    replies: list[str], world: dict[str, list[Passage]] = WORLD, **settings: Any
) -> tuple[Trajectory, ScriptedEngine]:
    agent = engine([*replies])
    return await play({"name": "ircot", "settings": settings}, agent, Shelf(world)), agent


def queries(trajectory: Trajectory) -> list[str]:
    return [search.query for search in trajectory.searches]


async def test_each_sentence_is_the_next_query_until_one_states_the_answer() -> None:
    trajectory, agent = await ircot(
        [
            "The harbour has a mole. The mole is old.",
            " The mole is by Ada Torrin. She",
            " So the answer is: Ada Torrin. Indeed.",
            "The answer is: Ada Torrin",
        ]
    )
    assert (trajectory.status, trajectory.answer) == ("finished", "Ada Torrin")
    assert queries(trajectory) == [*WORLD]
    assert [p.id for p in trajectory.passages] == ["c1", "c2", "c3"]
    rows, left_out = build_rows([trajectory], ["k1"], 10_000)
    assert check_rows(rows, {"k1": trajectory}) == 4 and not left_out
    check_snapshot("ircot", agent)


@pytest.mark.parametrize(
    ("thought", "settings"),
    [
        ("", {}),
        (" \n ", {}),
        ("It is old.", {}),
        ("The ANSWER IS: Ada. X", {}),
        ("the answer is Ada. Then", {}),
        (" \n \n \n it is", {"thought_tokens": 2}),
    ],
)
async def test_the_first_call_may_end_the_chain_and_blanks_are_no_query(thought: str, settings: dict[str, Any]) -> None:
    trajectory, _ = await ircot([thought, "Ada"], **settings)
    assert (trajectory.answer, len(trajectory.model_calls), len(trajectory.searches)) == ("Ada", 2, 1)


async def test_the_pool_holds_fifteen_paragraphs_none_of_them_twice() -> None:
    thoughts = ["One it is.", " Two it is.", " Three it is."]
    world = {QUESTION.text: [passage(n) for n in range(8)]}
    world |= {t.strip(): [passage(n) for n in range(5 * k, 5 * k + 8)] for k, t in enumerate(thoughts, 1)}
    replies = [*(f"{t} X" for t in thoughts), " So the answer is: 3. X", "3"]
    trajectory, _ = await ircot(replies, world, documents=8)
    assert [p.id for p in trajectory.passages] == [f"c{n}" for n in range(15)]
    small, _ = await ircot(replies, world, documents=8, pool=4)
    assert [p.id for p in small.passages] == ["c0", "c1", "c2", "c3"]


async def test_once_the_pool_is_full_nothing_is_searched_for() -> None:
    trajectory, _ = await ircot(FACTS_SAID, {QUESTION.text: [passage(n) for n in range(1, 4)], **FACTS}, sentences=5)
    assert len(trajectory.model_calls) == 6 and len(trajectory.passages) == 15
    assert queries(trajectory) == [QUESTION.text, *list(FACTS)[:4]]


@pytest.mark.parametrize("name", ["awe", "awe_drag"])
async def test_the_last_call_reads_all_that_awes_settings_retrieve(name: str) -> None:
    settings = load_config(f"configs/papers/{name}.yaml").evaluation.baselines["IRCoT"].settings
    world = {QUESTION.text: [passage(n) for n in range(1, 4)], **FACTS}
    trajectory, agent = await ircot(FACTS_SAID, world, **settings)
    retrievals = 5 if settings.get("reader") == "never" else 6
    assert len(trajectory.searches) == retrievals and len(trajectory.passages) == 3 * retrievals
    assert all(p.text in str(agent.calls[-1].messages) for p in trajectory.passages)


async def test_a_thought_that_the_limit_cut_is_the_query_as_it_is() -> None:
    trajectory, _ = await ircot(["abcdefgh", "hgfedcba", "Ada"], {}, thought_tokens=4, sentences=2)
    assert queries(trajectory) == [QUESTION.text, "abcd", "hgfe"]


async def test_the_answer_may_be_the_thoughts_alone() -> None:
    """FlashRAG's, which DRAG's evaluation runs: what the thoughts state, or all of them."""
    stated, _ = await ircot(["It is old. X", " So the answer is: Ada Torrin. X"], reader="never")
    assert (stated.answer, len(stated.model_calls)) == ("Ada Torrin", 2)
    open_ended, _ = await ircot(["It is old. X", " It is of stone. X"], reader="never", sentences=2)
    assert (open_ended.answer, len(open_ended.model_calls)) == ("It is old. It is of stone.", 2)
