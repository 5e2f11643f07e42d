"""FacTool: claim by claim, and nothing that cannot be read counts as true."""

from __future__ import annotations

from typing import Any

import pytest

from inference.scripted import ScriptedEngine
from questions.labels import TRUE_FALSE, choice_labels
from ratchet.errors import UserError
from ratchet.records import Note, Question, Trajectory
from tests.helpers.playing import CLAIM, Shelf, engine, passage, play, say
from tests.helpers.snapshots import check_snapshot

LONG = Question(id="a1", text="Ada Torrin built the harbour. It is in Velm.", form="claim", labels=TRUE_FALSE)
CLAIMS = ["Ada Torrin built the harbour of Velm.", "The harbour is in Velm."]
SHELF = {f"q{n}": [passage(n), passage(n + 1)] for n in range(1, 9)}


def extracted(*claims: str) -> str:
    return say(claims=claims)


def queries(*texts: str) -> str:
    return say(queries=texts)


def verdict(true: bool, reasoning: str = "It says so.") -> str:
    return say(reasoning=reasoning, error="", correction="", factuality=true)


async def check(
    agent: ScriptedEngine, question: Question = LONG, shelf: Shelf | None = None, **given: Any
) -> Trajectory:
    return await play({"name": "factool", "settings": given}, agent, shelf or Shelf(SHELF), question=question)


def script(*verdicts: str) -> ScriptedEngine:
    return engine([extracted(*CLAIMS), queries("q1", "q2"), queries("q4", "q5"), *verdicts])


async def test_every_claim_is_searched_twice_and_judged() -> None:
    agent, shelf = script(verdict(True, "One."), verdict(True, "Two.")), Shelf(SHELF)
    done = await check(agent, shelf=shelf)
    assert (done.status, done.answer) == ("finished", "true")
    assert (len(done.model_calls), len(done.searches)) == (5, 4)
    assert sorted(shelf.asked) == [(query, 5, 0) for query in ("q1", "q2", "q4", "q5")]
    assert [p.id for p in done.passages] == ["c1", "c2", "c3", "c4", "c5", "c6"]
    assert [(t.speaker, t.query, t.passages, t.verdict) for t in done.turns] == [
        ("claim 1", "q1 | q2", ("c1", "c2", "c3"), "true"),
        ("claim 2", "q4 | q5", ("c4", "c5", "c6"), "true"),
    ]
    assert done.explanation == f"{CLAIMS[0]} (true) One.\n{CLAIMS[1]} (true) Two."
    check_snapshot("factool", agent)


@pytest.mark.parametrize("verdicts", [(True, False), (False, True), (False, False)])
async def test_one_false_claim_makes_the_text_false(verdicts: tuple[bool, ...]) -> None:
    assert (await check(script(*map(verdict, verdicts)))).answer == "false"


async def test_a_verdict_that_cannot_be_read_is_not_true() -> None:
    done = await check(script(verdict(True), "true"))
    assert done.status == "unparsed" and done.answer == "" and CLAIMS[1][:20] in done.error
    three = LONG.model_copy(update={"labels": CLAIM.labels})
    done = await check(script(verdict(True), "true"), three)
    assert (done.answer, done.turns[1].verdict) == ("NOT ENOUGH INFO", "unverified")
    assert (await check(script("true", verdict(False)), three)).answer == "REFUTES"


async def test_a_single_claim_needs_no_extraction() -> None:
    agent = engine([queries("q1", "q2"), verdict(False, "No.")])
    done = await check(agent, CLAIM, extract=False, documents=1)
    assert (done.answer, done.explanation, len(done.model_calls), len(done.searches)) == ("REFUTES", "No.", 2, 2)
    assert [p.id for p in done.passages] == ["c1", "c2"] and done.turns[0].said.startswith(CLAIM.text)


@pytest.mark.parametrize("said", ["None", queries("q1"), queries("q1", "q2", "q3"), queries("q1", "")])
async def test_queries_that_cannot_be_read_are_the_claim_itself(said: str) -> None:
    shelf = Shelf({CLAIM.text: [passage(1)]})
    done = await check(engine([said, verdict(True)]), CLAIM, shelf, extract=False)
    assert done.answer == "SUPPORTS" and [query for query, _, _ in shelf.asked] == [CLAIM.text]


async def test_claims_are_capped_and_it_says_so() -> None:
    replies = [extracted(*CLAIMS, "beyond"), queries("q1", "q2"), queries("q4", "q5"), verdict(True), verdict(True)]
    done = await check(engine(replies), claims=2)
    assert any(isinstance(e, Note) and "the first 2 claims" in e.text for e in done.events)
    assert done.status == "finished" and "beyond" not in done.explanation and len(done.model_calls) == 5


async def test_a_text_without_claims_is_not_true() -> None:
    done = await check(engine([extracted()]), LONG.model_copy(update={"labels": CLAIM.labels}))
    assert (done.answer, len(done.model_calls), len(done.searches)) == ("NOT ENOUGH INFO", 1, 0)
    assert (await check(engine([extracted(" ")]))).status == "unparsed"


async def test_claims_that_are_said_twice_are_checked_once() -> None:
    agent = engine([extracted("A is B.", "a  is b."), queries("q1", "q2"), verdict(True)])
    assert len((await check(agent)).turns) == 1


async def test_a_task_whose_labels_are_no_truth_is_refused() -> None:
    exam = Question(id="m1", text="Which?", labels=choice_labels({"A": "one", "B": "two"}))
    with pytest.raises(UserError, match=r"m1.*stance"):
        await check(engine([]), exam)
