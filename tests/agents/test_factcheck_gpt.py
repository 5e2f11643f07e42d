"""Factcheck-GPT: claims worth checking, a stance of every document, and what the stances come to."""

from __future__ import annotations

from typing import Any

import pytest

from inference.scripted import ScriptedEngine
from questions.labels import TRUE_FALSE
from ratchet.records import Note, Question, Trajectory
from tests.helpers.playing import CLAIM, Shelf, engine, passage, play, say
from tests.helpers.snapshots import check_snapshot

LONG = Question(id="a1", text="Ada built the harbour. I like it. It is old.", form="claim", labels=TRUE_FALSE)
CLAIMS = ["Ada Torrin built the harbour.", "The harbour is nice.", "The harbour is old."]
FULL, PART, AGAINST, BESIDE = "completely-support", "partially-support", "refute", "irrelevant"
SHELF = {"q1": [passage(1), passage(2)], "q2": [passage(1), passage(3)], "q3": [passage(4)]}


def queries(*texts: str) -> str:
    return say(queries=texts)


def held(*stances: str) -> list[str]:
    return [say(stance=stance) for stance in stances]


async def check(agent: ScriptedEngine, question: Question = LONG, **given: Any) -> Trajectory:
    config = {"name": "factcheck_gpt", "settings": {"queries": 2, "evidence": 2, **given}}
    return await play(config, agent, Shelf(SHELF), question=question)


async def single(*stances: str, question: Question = LONG, **given: Any) -> Trajectory:
    agent = engine([queries("q1", "q2"), *stances])
    return await check(agent, question, extract=False, evidence=3, **given)


async def test_claims_worth_checking_are_searched_and_every_document_takes_a_stance() -> None:
    agent = engine(
        [
            say(claims=CLAIMS),
            say(worth=[True, False, True]),
            queries("q1", "q2"),
            queries("q2", "q3"),
            *held(FULL, BESIDE, PART, FULL),
        ]
    )
    done = await check(agent)
    assert (done.status, done.answer) == ("finished", "true")
    assert (len(done.model_calls), len(done.searches)) == (2 + 2 * (1 + 2), 4)
    assert [(t.speaker, t.passages, t.verdict) for t in done.turns] == [
        ("claim 1", ("c1", "c2"), "true"),
        ("claim 2", ("c1", "c4"), "true"),
    ]
    assert [p.id for p in done.passages] == ["c1", "c2", "c4"]
    assert any(isinstance(e, Note) and CLAIMS[1] in e.text for e in done.events)
    assert "1 completely-support, 1 irrelevant" in done.turns[0].said
    check_snapshot("factcheck_gpt", agent)


@pytest.mark.parametrize(
    ("stances", "answer"),
    [
        ((FULL, AGAINST, BESIDE), "true"),
        ((PART, BESIDE, BESIDE), "true"),
        ((AGAINST, BESIDE, BESIDE), "false"),
        ((BESIDE, BESIDE, BESIDE), "false"),
    ],
)
async def test_stances_decide(stances: tuple[str, ...], answer: str) -> None:
    done = await single(*held(*stances))
    assert (done.answer, len(done.model_calls), len(done.searches)) == (answer, 4, 2)


async def test_no_evidence_is_the_tasks_own_label_where_it_has_one() -> None:
    assert (await single(*held(BESIDE, BESIDE, BESIDE), question=CLAIM)).answer == "NOT ENOUGH INFO"


async def test_a_stance_that_cannot_be_read_decides_nothing() -> None:
    assert (await single("support", *held(AGAINST, BESIDE))).answer == "false"
    assert (await single("support", *held(FULL, BESIDE))).answer == "true"
    done = await single("support", *held(BESIDE, BESIDE))
    assert (done.status, done.answer) == ("unparsed", "") and "1 unparsed" in done.error


async def test_worth_that_cannot_be_read_keeps_all_claims() -> None:
    agent = engine([say(claims=CLAIMS[:1]), say(worth=[True, True]), queries("q1", "q2"), *held(FULL, FULL)])
    assert (await check(agent)).answer == "true"


async def test_a_text_with_nothing_to_check_is_not_true() -> None:
    done = await check(engine([say(claims=CLAIMS[1:2]), say(worth=[False])]))
    assert done.status == "unparsed" and "no claim to check" in done.error and not done.searches
    assert (await check(engine([say(claims=[])]))).status == "unparsed"


async def test_the_papers_budget_is_the_default() -> None:
    shelf = Shelf({f"q{n}": [passage(10 * n + i) for i in range(9)] for n in range(5)})
    agent = engine([queries(*shelf.ranked), *held(*[AGAINST] * 5)])
    done = await play({"name": "factcheck_gpt", "settings": {"extract": False}}, agent, shelf, question=CLAIM)
    assert (done.answer, len(done.model_calls), len(done.searches)) == ("REFUTES", 6, 5)
    assert [p.id for p in done.passages] == ["c0", "c10", "c20", "c30", "c40"]
