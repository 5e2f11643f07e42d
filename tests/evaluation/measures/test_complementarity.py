from typing import Any

import pytest

from ratchet.core.records import Label, Question, Trajectory
from ratchet.evaluation.measures.complementarity import complementarity

QUESTIONS = [Question(id=f"q{i}", text="?", answers=("sea", "the coast")) for i in range(6)]


def made(question: int, first: str, second: str, answer: str = "", sample: int = 0, **fields: Any) -> Trajectory:
    given = {"status": "finished", "candidates": {"knowledge": first, "retrieval": second}, **fields}
    return Trajectory(
        key=f"{question}-{sample}", question_id=f"q{question}", system="awe", policy="base", sample=sample, seed=0,
        answer=answer, **given,
    )  # fmt: skip


def test_both_one_only_and_neither_with_the_final_answer_of_each() -> None:
    found = complementarity(
        QUESTIONS,
        [
            made(0, "The sea.", "coast", "sea"),
            made(1, "sea", "hill", "hill"),
            made(2, "sea", "hill", "sea"),
            made(3, "hill", "sea", "sea"),
            made(4, "hill", "lake", "lake"),
        ],
    )
    assert found is not None
    rows = [(outcome.right, outcome.questions, outcome.share, outcome.final) for outcome in found.outcomes]
    assert rows == [
        (("knowledge", "retrieval"), 1, 0.2, 1.0),
        (("knowledge",), 2, 0.4, 0.5),
        (("retrieval",), 1, 0.2, 1.0),
        ((), 1, 0.2, 0.0),
    ]
    assert (found.questions, found.left_out) == (5, 0)
    assert (found.final, found.any_right) == (pytest.approx(0.6), pytest.approx(0.8))
    assert (found.alone("knowledge"), found.alone("retrieval")) == (pytest.approx(0.6), pytest.approx(0.4))


def test_a_question_counts_once_however_many_trajectories_it_has() -> None:
    many = [made(0, "sea", "sea", "sea", sample) for sample in range(3)]
    found = complementarity(QUESTIONS, [*many, made(0, "sea", "hill", "hill", 3), made(1, "hill", "hill", "hill")])
    assert found is not None
    assert {outcome.right: outcome.questions for outcome in found.outcomes if outcome.questions} == {
        ("knowledge", "retrieval"): 0.75,
        ("knowledge",): 0.25,
        (): 1.0,
    }
    assert found.final == pytest.approx(0.375)


def test_unfinished_counts_as_wrong_and_unusable_trajectories_are_skipped_and_counted() -> None:
    questions = [*QUESTIONS, Question(id="q9", text="no answer known")]
    found = complementarity(
        questions,
        [
            made(0, "sea", "sea", "sea", status="out_of_budget"),
            made(1, "", "", candidates={}, status="failed"),
            made(2, "", "", candidates={"knowledge": "sea"}, status="unparsed"),
            made(9, "sea", "sea", "sea"),
            made(77, "sea", "sea", "sea"),
            made(3, "", "", "sea", candidates={}),
        ],
    )
    assert found is not None
    assert (found.questions, found.left_out) == (3, 3)
    assert found.final == 0.0, "strict: none of them finished"
    assert (found.alone("knowledge"), found.alone("retrieval")) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert complementarity(QUESTIONS, [made(0, "", "", candidates={"alone": "sea"})]) is None
    assert complementarity(QUESTIONS, [made(0, "", "", candidates={})]) is None


def test_three_candidates_have_eight_outcomes_and_more_only_what_occurred() -> None:
    three = {"a": "sea", "b": "hill", "c": "sea"}
    found = complementarity(QUESTIONS, [made(0, "", "", "sea", candidates=three)])
    assert found is not None and len(found.outcomes) == 8
    assert [outcome.right for outcome in found.outcomes if outcome.questions] == [("a", "c")]
    four = complementarity(QUESTIONS, [made(0, "", "", "sea", candidates={**three, "d": "lake"})])
    assert four is not None and [outcome.right for outcome in four.outcomes] == [("a", "c")]


def test_labels_are_compared_as_labels_and_not_as_words() -> None:
    labels = tuple(Label(name=name, meaning=meaning) for name, meaning in (("A", "iron"), ("B", "the sea")))
    exam = [
        Question(id="q0", text="?", labels=labels, label="A"),
        Question(id="q1", text="?", labels=labels, label="B"),
    ]
    found = complementarity(exam, [made(0, "A", "", "A"), made(1, "A", "B", "A")])
    assert found is not None and (found.alone("knowledge"), found.alone("retrieval"), found.final) == (0.5, 0.5, 0.5)
