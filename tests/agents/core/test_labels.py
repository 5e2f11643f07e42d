"""Verdicts out of free text: what counts as a label on the last line, and what a text out of form comes to."""

from __future__ import annotations

import pytest

from agents.core.label_mentions import mentioned_label
from agents.core.labels import labels_of, labels_text, mentioned_verdict, read_label, read_verdict, task_text
from agents.core.output import Malformed
from questions.labels import AVERITEC, FEVER, HOVER, YES_NO_MAYBE, choice_labels
from ratchet.errors import UserError
from ratchet.records import Label
from tests.helpers.playing import CLAIM, QUESTION

CHOICES = choice_labels({"A": "Tin", "B": "Zinc (raw)", "C": "Vitamin C", "D": "None of these"})
MARKS = choice_labels({"C": "one", "C++": "two", "+": "three"})

PARTLY = choice_labels({"true": "yes", "partly true": "half", "true in part": "half of it"})


@pytest.mark.parametrize(
    ("text", "labels", "label"),
    [
        ("She built it.\nSUPPORTS", FEVER, "SUPPORTS"),
        ("REFUTES\nno,\n**not  enough info.**\n\n", FEVER, "NOT ENOUGH INFO"),
        ("x\n```\nRefutes\n```", FEVER, "REFUTES"),
        ("### \u201cSUPPORTS\u201d", FEVER, "SUPPORTS"),
        ("\u00a0\uff33\uff35\uff30\uff30\uff2f\uff32\uff34\uff33\u200b", FEVER, "SUPPORTS"),
        ("NOT\\_SUPPORTED", HOVER, "NOT_SUPPORTED"),
        ("Not supported", HOVER, "NOT_SUPPORTED"),
        ("Conflicting evidence / cherrypicking", AVERITEC, "Conflicting Evidence/Cherrypicking"),
        ("(b)", CHOICES, "B"),
        ("B) Zinc (raw)", CHOICES, "B"),
        ("C: vitamin c.", CHOICES, "C"),
        ("C", MARKS, "C"),
        ("C++", MARKS, "C++"),
        ("so\n +", MARKS, "+"),
    ],
)
def test_a_label_alone_on_the_last_line_is_read_whatever_surrounds_it(
    text: str, labels: tuple[Label, ...], label: str
) -> None:
    assert read_label(text, labels) == mentioned_label(text, labels) == label


@pytest.mark.parametrize(
    ("text", "labels", "meant"),
    [
        ("", FEVER, ""),
        ("---\n\n", FEVER, ""),
        ("SUPPORTS / REFUTES / NOT ENOUGH INFO", FEVER, ""),
        ("Verdict: SUPPORTS / REFUTES", FEVER, ""),
        ("not SUPPORTS", FEVER, ""),
        ("The answer is not SUPPORTS.", FEVER, ""),
        ("It SUPPORTS the claim, and does not say REFUTES, it's not REFUTES", FEVER, ""),
        ("It refutes, or it supports.", FEVER, ""),
        ("SUPPORTSX", FEVER, ""),
        ("So?\n- SUPPORTS\n- REFUTES\n- NOT ENOUGH INFO", FEVER, ""),
        ("A: Tin\nB: Zinc (raw)\nC: Vitamin C\nD: None of these", CHOICES, ""),
        ("SUPPORTS\nBecause she did.", FEVER, "SUPPORTS"),
        ("I thought SUPPORTS.\nBut the pages say it REFUTES them.", FEVER, "REFUTES"),
        ("Verdict: **SUPPORTS** [1]", FEVER, "SUPPORTS"),
        ("The evidence is not enough info", FEVER, "NOT ENOUGH INFO"),
        ("It is NOT SUPPORTED by them.", HOVER, "NOT_SUPPORTED"),
        ("Not Supported", AVERITEC, ""),
        ("I think it is partly true.", PARTLY, "partly true"),
        ("I think it is true in part.", PARTLY, "true in part"),
        ("A study shows that vitamin C helps.", CHOICES, ""),
        ("Tin", CHOICES, ""),
        ("The right answer to this question is (C), because C is needed.", CHOICES, "C"),
        ("the answer is b", CHOICES, ""),
        ("I choose D since A study says so", CHOICES, "D"),
        ("B. It is a metal", CHOICES, "B"),
        ("There is no doubt.", YES_NO_MAYBE, ""),
        ("Yes, there is no doubt.", YES_NO_MAYBE, "yes"),
        ("So the answer would be maybe, for now.", YES_NO_MAYBE, "maybe"),
    ],
)
def test_what_is_out_of_form_is_malformed_and_read_where_it_is_clear(
    text: str, labels: tuple[Label, ...], meant: str
) -> None:
    with pytest.raises(Malformed, match=r"last line.* labels"):
        read_label(text, labels)
    assert mentioned_label(text, labels) == meant
    verdict = mentioned_verdict(text, labels)
    assert (verdict.label, verdict.text, verdict.reasons) == (meant, text, text.strip())


def test_labels_that_differ_by_marks_alone_are_told_apart_or_not_at_all() -> None:
    with pytest.raises(Malformed):
        read_label("c", MARKS)


def test_reasons_are_what_stands_before_the_label() -> None:
    verdict = read_verdict("One.\n\nTwo.\n\n**SUPPORTS**\n---\n", FEVER)
    assert (verdict.label, verdict.reasons) == ("SUPPORTS", "One.\n\nTwo.")
    assert read_verdict("SUPPORTS", FEVER).reasons == ""


def test_a_long_text_is_read_in_no_time() -> None:
    for text in ("answer " * 20_000, "*" * 20_000, "not " * 20_000, " " * 20_000, "the answer: " * 10_000):
        assert mentioned_label(text, FEVER) == ""


def test_a_prompt_shows_each_label_with_what_it_means() -> None:
    assert labels_text(CHOICES).splitlines() == [
        "A: Tin",
        "B: Zinc (raw)",
        "C: Vitamin C",
        "D: None of these",
    ]
    assert task_text(CLAIM) == f"Claim: {CLAIM.text}" and task_text(QUESTION).startswith("Question: ")


def test_a_question_without_labels_is_refused_with_a_way_out() -> None:
    with pytest.raises(UserError, match=r"'q1' has no labels.*benchmark"):
        labels_of(QUESTION)
