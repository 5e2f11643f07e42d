"""What a gain consists of, and what no skill scores."""

import pytest

from ratchet.core.records import Label, Question, Trajectory
from ratchet.evaluation.comparisons import best_baseline, compare, label_floor
from ratchet.evaluation.headline import verdict
from ratchet.evaluation.results import MIN_ANSWERED, Arm
from tests.helpers.arms import make_arm

LABELS = (
    Label(name="SUPPORTED", meaning="it is so", stance="true"),
    Label(name="REFUTED", meaning="it is not so", stance="false"),
)
QUESTIONS = [
    Question(id=f"q{i}", text=f"claim {i}", label="REFUTED" if i % 3 else "SUPPORTED", labels=LABELS) for i in range(60)
]
SHORT = [Question(id=f"q{i}", text=f"who {i}?", answers=("Ada Pell",)) for i in range(60)]


def arm(name: str, questions: list[Question], outcomes: list[str]) -> Arm:
    """right, wrong, or no answer in form ('unparsed'), for each question in turn; repeated to the end."""
    trajectories = []
    for number, question in enumerate(questions):
        outcome = outcomes[number % len(outcomes)]
        good, bad = ("Ada Pell", "nobody") if question.answers else (question.label or "", "UNCERTAIN")
        trajectories.append(
            Trajectory(
                key=f"{name}{number}",
                question_id=question.id,
                system="cot",
                sample=0,
                seed=0,
                status="unparsed" if outcome == "unparsed" else "finished",
                answer="" if outcome == "unparsed" else good if outcome == "right" else bad,
                policy="base",
                seconds=1.0,
            )
        )
    return make_arm(name, "cot", "base", questions, trajectories, {}, ("f1",), {})


def test_more_answers_that_are_no_better_are_a_gain_in_form_only() -> None:
    base = arm("base", QUESTIONS, ["right", "wrong", "unparsed", "unparsed", "unparsed", "unparsed"])
    trained = arm("adapter", QUESTIONS, ["right", "wrong", "right", "wrong", "right", "wrong"])
    comparison = compare(base, trained, QUESTIONS, "accuracy", 0)
    assert comparison.measures["accuracy"].is_clear()
    assert (comparison.gain.form.before, comparison.gain.form.after) == (pytest.approx(1 / 3), 1)
    assert (comparison.gain.substance.n, comparison.gain.substance.mean) == (20, 0)
    words, sentences = verdict(comparison, "accuracy", floor=label_floor(QUESTIONS))
    assert words == "The trained model is better in form only"
    assert "In form, finished with an answer: 0.33 -> 1.00: +0.67 [" in sentences
    assert "in substance, Accuracy on 20 questions that both answered: 0.50 -> 0.50: +0.00 [" in sentences
    assert sentences.endswith(
        "Always answering REFUTED scores 0.67 and chance 0.50: the trained model's 0.50 is not above the former."
    )
    baseline = arm("plain", QUESTIONS, ["right", "wrong"])
    best = best_baseline([base, trained, baseline], "accuracy", 0)
    words, _ = verdict(comparison, "accuracy", best)
    assert words.startswith("The trained model is better than base in form only, but not clearly different from the")


def test_better_answers_are_a_gain_in_substance() -> None:
    base, trained = arm("base", SHORT, ["right", "wrong", "wrong"]), arm("adapter", SHORT, ["right", "right", "wrong"])
    comparison = compare(base, trained, SHORT, "f1", 0)
    assert (comparison.gain.form.mean, comparison.gain.substance.mean) == (0, pytest.approx(1 / 3))
    words, sentences = verdict(comparison, "f1")
    assert words == "The trained model is better"
    assert "In form" not in sentences  # nothing changed there


def test_substance_cannot_be_compared_where_the_base_answers_nothing() -> None:
    base, trained = arm("base", SHORT, ["unparsed"]), arm("adapter", SHORT, ["right", "wrong"])
    words, sentences = verdict(compare(base, trained, SHORT, "f1", 0), "f1")
    assert words == "The trained model is better"
    assert "no question was answered by both, so their substance cannot be compared" in sentences


def test_the_floor_of_labels() -> None:
    floor = label_floor(QUESTIONS)
    assert floor is not None
    assert (floor.chance, floor.commonest, floor.accuracy) == (0.5, "REFUTED", pytest.approx(2 / 3))
    assert label_floor(SHORT) is None


def test_too_few_answers_in_form_tell_nothing_of_substance() -> None:
    base = arm("base", QUESTIONS, ["wrong", *["unparsed"] * 9])
    trained = arm("adapter", QUESTIONS, ["right", "wrong", "wrong"])
    comparison = compare(base, trained, QUESTIONS, "accuracy", 0)
    assert comparison.gain.substance.n < MIN_ANSWERED and not comparison.gain.is_form_only
