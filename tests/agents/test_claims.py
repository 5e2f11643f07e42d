"""FacTool and Factcheck-GPT: claim by claim, and nothing that cannot be read counts as true."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.core.errors import UserError
from ratchet.core.records import Note, Question, Trajectory
from ratchet.inference.scripted import ScriptedEngine
from ratchet.questions.labels import TRUE_FALSE, choice_labels
from tests.helpers.playing import CLAIM, Shelf, engine, passage, play, say
from tests.helpers.snapshots import check_snapshot

LONG = Question(id="a1", text="Ada Torrin built the harbour. It is in Velm.", form="claim", labels=TRUE_FALSE)
THREE = LONG.model_copy(update={"labels": CLAIM.labels})
CLAIMS = ["Ada Torrin built the harbour of Velm.", "The harbour is in Velm.", "The harbour is nice."]
SHELF = {f"q{n}": [passage(n), passage(n + 1)] for n in range(1, 9)}
FULL, PART, AGAINST, BESIDE = "completely-support", "partially-support", "refute", "irrelevant"


def extracted(*claims: str) -> str:
    return say(claims=claims)


def queries(*texts: str) -> str:
    return say(queries=texts)


def verdict(true: bool, reasoning: str = "It says so.") -> str:
    return say(reasoning=reasoning, error="", correction="", factuality=true)


def held(*stances: str) -> list[str]:
    return [say(stance=stance) for stance in stances]


async def factool(
    agent: ScriptedEngine, question: Question = LONG, shelf: Shelf | None = None, **given: Any
) -> Trajectory:
    return await play({"name": "factool", "settings": given}, agent, shelf or Shelf(SHELF), question=question)


async def factcheck(replies: list[str], question: Question = LONG, **given: Any) -> Trajectory:
    config = {"name": "factcheck_gpt", "settings": {"queries": 2, "evidence": 2, **given}}
    return await play(config, engine(replies), Shelf(SHELF), question=question)


# FacTool


def script(*verdicts: str) -> ScriptedEngine:
    return engine([extracted(*CLAIMS[:2]), queries("q1", "q2"), queries("q4", "q5"), *verdicts])


async def test_every_claim_is_searched_twice_and_judged() -> None:
    agent, shelf = script(verdict(True, "One."), verdict(True, "Two.")), Shelf(SHELF)
    done = await factool(agent, shelf=shelf)
    assert (done.status, done.answer) == ("finished", "true")
    assert sorted(shelf.asked) == [(query, 5, 0) for query in ("q1", "q2", "q4", "q5")]
    assert [p.id for p in done.passages] == ["c1", "c2", "c3", "c4", "c5", "c6"]
    assert [(t.speaker, t.query, t.passages, t.verdict) for t in done.turns] == [
        ("claim 1", "q1 | q2", ("c1", "c2", "c3"), "true"),
        ("claim 2", "q4 | q5", ("c4", "c5", "c6"), "true"),
    ]
    assert done.explanation == f"{CLAIMS[0]} (true) One.\n{CLAIMS[1]} (true) Two."
    check_snapshot("factool", agent)


@pytest.mark.parametrize(
    ("verdicts", "question", "answer", "states"),
    [
        ((verdict(True), verdict(False)), LONG, "false", ["true", "false"]),
        ((verdict(False), verdict(True)), LONG, "false", ["false", "true"]),
        ((verdict(True), "true"), LONG, "", ["true", "unverified"]),
        ((verdict(True), "true"), THREE, "NOT ENOUGH INFO", ["true", "unverified"]),
        (("true", verdict(False)), THREE, "REFUTES", ["unverified", "false"]),
    ],
)
async def test_one_false_claim_makes_the_text_false_and_one_unread_keeps_it_from_being_true(
    verdicts: tuple[str, ...], question: Question, answer: str, states: list[str]
) -> None:
    done = await factool(script(*verdicts), question)
    assert (done.answer, [turn.verdict for turn in done.turns]) == (answer, states)
    assert bool(answer) or (done.status == "unparsed" and CLAIMS[1][:20] in done.error)


async def test_a_single_claim_needs_no_extraction() -> None:
    agent = engine([queries("q1", "q2"), verdict(False, "No.")])
    done = await factool(agent, CLAIM, extract=False, documents=1)
    assert (done.answer, done.explanation, [p.id for p in done.passages]) == ("REFUTES", "No.", ["c1", "c2"])
    assert done.turns[0].said.startswith(CLAIM.text)


@pytest.mark.parametrize("said", ["None", queries("q1"), queries("q1", "q2", "q3"), queries("q1", "")])
async def test_queries_that_cannot_be_read_are_the_claim_itself(said: str) -> None:
    shelf = Shelf({CLAIM.text: [passage(1)]})
    done = await factool(engine([said, verdict(True)]), CLAIM, shelf, extract=False)
    assert done.answer == "SUPPORTS" and [query for query, _, _ in shelf.asked] == [CLAIM.text]


async def test_claims_are_capped_and_each_is_checked_once() -> None:
    done = await factool(engine([extracted(*CLAIMS), *[queries("q1", "q2")] * 2, *[verdict(True)] * 2]), claims=2)
    assert any(isinstance(e, Note) and "the first 2 claims" in e.text for e in done.events)
    assert done.status == "finished" and len(done.turns) == 2
    agent = engine([extracted("A is B.", "a  is b."), queries("q1", "q2"), verdict(True)])
    assert len((await factool(agent)).turns) == 1


async def test_a_text_without_claims_is_not_true() -> None:
    done = await factool(engine([extracted()]), THREE)
    assert (done.answer, len(done.model_calls), len(done.searches)) == ("NOT ENOUGH INFO", 1, 0)
    assert (await factool(engine([extracted(" ")]))).status == "unparsed"
    done = await factcheck([extracted(CLAIMS[2]), say(worth=[False])])
    assert done.status == "unparsed" and "no claim to check" in done.error and not done.searches


async def test_a_task_whose_labels_are_no_truth_is_refused() -> None:
    exam = Question(id="m1", text="Which?", labels=choice_labels({"A": "one", "B": "two"}))
    with pytest.raises(UserError, match=r"m1.*stance"):
        await factool(engine([]), exam)


# Factcheck-GPT


async def test_claims_worth_checking_are_searched_and_every_document_takes_a_stance() -> None:
    replies = [extracted(*CLAIMS), say(worth=[True, True, False]), queries("q1", "q2"), queries("q2", "q4")]
    agent = engine([*replies, *held(FULL, BESIDE, PART, FULL)])
    config = {"name": "factcheck_gpt", "settings": {"queries": 2, "evidence": 2}}
    done = await play(config, agent, Shelf(SHELF), question=LONG)
    assert (done.status, done.answer, len(done.model_calls)) == ("finished", "true", 2 + 2 * (1 + 2))
    assert [(t.speaker, t.passages, t.verdict) for t in done.turns] == [
        ("claim 1", ("c1", "c2"), "true"),
        ("claim 2", ("c2", "c4"), "true"),
    ], "each query's first document, then each one's second"
    assert any(isinstance(e, Note) and CLAIMS[2] in e.text for e in done.events)
    assert "1 completely-support, 1 irrelevant" in done.turns[0].said
    check_snapshot("factcheck_gpt", agent)


@pytest.mark.parametrize(
    ("stances", "question", "answer"),
    [
        ([FULL, AGAINST, BESIDE], LONG, "true"),
        ([PART, BESIDE, BESIDE], LONG, "true"),
        ([AGAINST, BESIDE, BESIDE], LONG, "false"),
        ([BESIDE, BESIDE, BESIDE], LONG, "false"),
        ([BESIDE, BESIDE, BESIDE], CLAIM, "NOT ENOUGH INFO"),
        (["unread", AGAINST, BESIDE], LONG, "false"),
        (["unread", FULL, BESIDE], LONG, "true"),
        (["unread", BESIDE, BESIDE], LONG, ""),
    ],
)
async def test_stances_decide_and_one_that_cannot_be_read_decides_nothing(
    stances: list[str], question: Question, answer: str
) -> None:
    done = await factcheck([queries("q1", "q2"), *held(*stances)], question, extract=False, evidence=3)
    assert done.answer == answer
    assert bool(answer) or (done.status == "unparsed" and "1 unparsed" in done.error)


async def test_worth_that_cannot_be_read_keeps_all_claims() -> None:
    replies = [extracted(CLAIMS[0]), say(worth=[True, True]), queries("q1", "q2"), *held(FULL, FULL)]
    assert (await factcheck(replies)).answer == "true"
