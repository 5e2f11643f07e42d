"""Verdicts against tables made by hand: confusion, F1 by label, macro-F1 and its intervals, uncertainty, votes."""

import random

import pytest

from ratchet.core.records import Label, Question
from ratchet.evaluation.measures.verdicts import (
    APART,
    Verdicts,
    average_macro_f1,
    label_scores,
    macro_f1_difference,
    uncertainty,
    verdicts_of,
)
from ratchet.evaluation.results import Arm
from ratchet.questions.labels import FEVER, FEVER_TWO, choice_labels
from tests.helpers.arms import make_arm
from tests.helpers.verdict_arms import SHORT, claims, results_of, said

S, R, N = "SUPPORTS", "REFUTES", "NOT ENOUGH INFO"


def verdicts(gold: str, *samples: str, labels: tuple[Label, ...] = FEVER) -> Verdicts:
    questions = claims(gold, labels)
    found = verdicts_of(questions, said(questions, samples))
    assert found is not None
    return found


def macro(found: Verdicts, form: str = "") -> float:
    interval = average_macro_f1([found], 0, f"macro_f1{form}")
    assert interval is not None and interval.mean is not None
    return interval.mean


def test_the_confusion_keeps_every_ending_apart() -> None:
    found = verdicts("SSSSRRRNN", "SSRXR!?U$")
    assert found.labels == (S, R, N) and APART == ("uncertain", "other", "unparsed", "out of budget", "failed")
    assert found.confusion == (
        (2, 1, 0, 0, 1, 0, 0, 0),
        (0, 1, 0, 0, 0, 1, 0, 1),
        (0, 0, 0, 1, 0, 0, 1, 0),
    )


def test_f1_by_label_against_a_hand_table() -> None:
    found = verdicts("SSSSRRRNN", "SSRSRRNNS")
    supports, refutes, unknown = label_scores(found)
    assert supports == (S, 4, 3 / 4, 3 / 4, 3 / 4)
    assert refutes[1:] == pytest.approx((3, 2 / 3, 2 / 3, 2 / 3))
    assert unknown[1:] == pytest.approx((2, 1 / 2, 1 / 2, 1 / 2))
    assert macro(found) == pytest.approx((3 / 4 + 2 / 3 + 1 / 2) / 3)


def test_no_verdict_is_one_of_no_label() -> None:
    found = verdicts("SSRR", "S!RX")
    supports, refutes, unknown = label_scores(found)
    assert supports == (S, 2, 1.0, 0.5, pytest.approx(2 / 3)), "an answer that is no label is no verdict on another"
    assert refutes == (R, 2, 1.0, 0.5, pytest.approx(2 / 3)) and unknown == (N, 0, None, None, None)
    assert macro(found) == pytest.approx(2 / 3), "strict: over the two labels that are gold"
    assert macro(found, "_lenient") == pytest.approx((1 + 2 / 3) / 2), "lenient: the failed one is not asked about"


@pytest.mark.parametrize("seed", range(20))
def test_macro_f1_is_that_of_scikit_learn_with_a_label_of_its_own_for_no_verdict(seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    drawn = random.Random(seed)
    gold = "".join(drawn.choices("SRN", (5, 3, drawn.randrange(2)), k=30))
    samples = ["".join(drawn.choices("SRNUX!?$", (5, 5, 2, 1, 1, 1, 1, 1), k=30)) for _ in range(1 + seed % 3)]
    found = verdicts(gold, *samples)
    for form, left_out in (("", ""), ("_lenient", "!?$")):
        rows = [
            (SHORT[right], SHORT.get(letter, "no verdict"), 1 / len(counted))
            for right, letters in zip(gold, zip(*samples, strict=True), strict=True)
            for counted in [[letter for letter in letters if letter not in left_out]]
            for letter in counted
        ]
        true, predicted, weights = zip(*rows, strict=True)
        expected = metrics.f1_score(
            true, predicted, labels=sorted({*true}), average="macro", sample_weight=weights, zero_division=0
        )
        assert macro(found, form) == pytest.approx(expected)


def test_an_answer_out_of_budget_counts_leniently_and_as_returned() -> None:
    questions = claims("SR")
    made = [t.model_copy(update={"status": "out_of_budget"}) for t in said(questions, ["SR"])]
    found = verdicts_of(questions, made)
    assert found is not None
    assert [macro(found, form) for form in ("", "_as_returned", "_lenient")] == [0.0, 1.0, 1.0]
    assert [row[APART.index("out of budget") + 3] for row in found.confusion] == [1, 1, 0]


def test_several_samples_of_a_question_share_its_weight() -> None:
    found = verdicts("SR", "SR", "SS", "R?", "S!")
    assert found.confusion[0][:2] == (0.75, 0.25)
    assert found.confusion[1] == (0.25, 0.25, 0, 0, 0, 0.25, 0, 0.25)
    supports = 2 * 0.75 / (1 + 1.0)
    refutes = 2 * 0.25 / (1 + 0.5)
    assert macro(found) == pytest.approx((supports + refutes) / 2)
    lenient = (2 * 0.75 / (1 + 1.25) + 2 * 0.5 / (1 + 0.75)) / 2
    assert macro(found, "_lenient") == pytest.approx(lenient), "of the two answers to the second, one is right"


def test_labels_are_read_as_accuracy_reads_them() -> None:
    questions = claims("S")
    made = [t.model_copy(update={"answer": " supports\n"}) for t in said(questions, ["S"])]
    found = verdicts_of(questions, made)
    assert found is not None and found.confusion[0][0] == 1


def test_labels_are_those_of_all_questions() -> None:
    two, three = (choice_labels({letter: letter * 3 for letter in letters}) for letters in ("AB", "ABC"))
    questions = [
        Question(id="1", text="?", labels=two, label="B"),
        Question(id="2", text="?", labels=three, label="C"),
        Question(id="3", text="?", answers=("x",)),
    ]
    made = [t.model_copy(update={"answer": a}) for t, a in zip(said(questions, ["XXX"]), "BCA", strict=True)]
    found = verdicts_of(questions, made)
    assert found is not None and found.labels == ("A", "B", "C") and set(found.questions) == {"1", "2"}
    assert macro(found) == 1.0
    assert verdicts_of(questions[2:], made) is None


def arm(gold: str, *samples: str) -> Arm:
    questions = claims(gold)
    return make_arm("a", "s", "base", questions, said(questions, samples), {}, (), {})


def test_macro_f1_stands_among_the_measures_with_an_interval_over_questions() -> None:
    found = arm("SR" * 20, "SR" * 10 + "RS" * 10).measures["macro_f1"]
    assert found.mean == pytest.approx(0.5) and found.n == 40
    assert found.low is not None and found.high is not None and 0.3 < found.low < 0.4 < 0.6 < found.high < 0.7
    certain = arm("SR", "SR").measures["macro_f1"]
    assert (certain.low, certain.high) == (1.0, 1.0)
    assert arm("S", "S").measures["macro_f1"].low is None, "one question shows no spread"
    assert arm("SR", "!!").measures["macro_f1"].mean == 0.0
    assert arm("SR", "!!").measures["macro_f1_lenient"].mean is None


def test_the_difference_of_macro_f1_is_paired() -> None:
    gold = "SR" * 20
    before, after = "SR" * 10 + "RS" * 10, "SR" * 16 + "RS" * 4
    found = results_of(claims(gold), {"base": [before], "other": [after]}).comparisons[0].measures["macro_f1"]
    assert (found.before, found.after, found.mean) == pytest.approx((0.5, 0.8, 0.3))
    assert found.is_clear() and found.p is not None and found.p < 0.02
    apart = macro_f1_difference(verdicts(gold, before), verdicts(gold, before), 0)
    assert apart is not None and (apart.mean, apart.low, apart.high, apart.p) == (0, 0, 0, 1)


def test_uncertain_verdicts_are_counted_apart_from_decided_ones() -> None:
    """Uncertain on 3 of 10; decided on 6, 5 of them right; one failed."""
    unsure = uncertainty(verdicts("SSSSRRRRSS", "SSSURRSUU!", labels=FEVER_TWO), 0)
    assert unsure is not None
    assert (unsure.share.mean, unsure.coverage.mean) == pytest.approx((0.3, 0.6))
    assert unsure.accuracy.mean == pytest.approx(5 / 6)
    assert uncertainty(verdicts("SR", "SX"), 0) is None


def test_a_label_of_stance_unknown_is_uncertain_and_may_be_right() -> None:
    found = verdicts("SNNR", "NNSR")
    unsure = uncertainty(found, 0)
    assert unsure is not None and unsure.accuracy is not None
    assert (unsure.share.mean, unsure.coverage.mean, unsure.accuracy.mean) == (0.5, 0.5, 0.5)
