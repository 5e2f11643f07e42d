"""Measures of hand-made trajectories: strict and lenient, endings apart, nulls never zero."""

from typing import Any

import pytest

from ratchet.core.records import ModelCall, Passage, Question, Score, Search, Status, Trajectory
from ratchet.evaluation.measures.measures import (
    harmonic_mean,
    measure,
    unattributed,
    values_by_question,
    values_of_samples,
)
from tests.helpers.arms import make_arm

QUESTION = Question(id="q", text="Who?", answers=("Ada Pell", "Pell"))
NAMES = ("em", "f1", "lexical_support")


def call(parse: str = "ok", prompt: int = 100, cached: int = 40, new: int = 10) -> ModelCall:
    return ModelCall(
        role="coordinator",
        conversation=0,
        start=0,
        end=0,
        text="{}",
        parse=parse,
        finish_reason="stop",
        prompt_tokens=prompt,
        cached_tokens=cached,
        new_tokens=new,
        at=0.0,
        seconds=0.1,
    )


def search() -> Search:
    hit = Passage(id="d#0", document_id="d", text="Ada Pell keeps it.")
    return Search(role="searcher", query="keeper", k=2, offset=0, passages=(hit,), at=0.0, seconds=0.0)


def trajectory(key: str = "t", question: str = "q", **fields: Any) -> Trajectory:
    made = {"system": "mrag", "policy": "base", "sample": 0, "seed": 0, "status": "finished", "answer": ""}
    return Trajectory(key=key, question_id=question, **{**made, **fields})


def score(key: str, name: str, value: float | None, *verdicts: dict[str, Any]) -> tuple[tuple[str, str], Score]:
    reason = "" if value is not None else "unreadable"
    return (key, name), Score(trajectory=key, name=name, value=value, reason=reason, verdicts=verdicts)


def one(made: Trajectory, question: Question = QUESTION, **scores: float | None) -> dict[str, float | None]:
    given = dict(score(made.key, name, value) for name, value in scores.items())
    return measure(question, made, given, NAMES, {"lexical_support": 1.0})


def test_a_right_answer_that_finished() -> None:
    found = one(trajectory(answer="Pell."), lexical_support=0.5)
    assert found["em"] == found["f1"] == found["em_lenient"] == 1.0
    assert found["lexical_support"] == found["reward"] == 0.5
    assert found["answer_words"] == 1


@pytest.mark.parametrize("status", ["unparsed", "out_of_budget", "failed"])
def test_strict_is_zero_without_a_finish_and_lenient_looks_at_the_answer(status: str) -> None:
    found = one(trajectory(answer="Ada Pell", status=status))
    assert (found["em"], found["em_lenient"], found["f1"], found["f1_lenient"]) == (0.0, 1.0, 0.0, 1.0)
    assert [found[s] for s in ("finished", "unparsed", "out_of_budget", "failed")].count(1.0) == 1
    assert found[status] == 1.0


def test_no_answer_is_zero_strictly_and_no_part_of_the_lenient_mean() -> None:
    found = one(trajectory(answer="  ", status="unparsed"))
    assert (found["f1"], found["f1_lenient"], found["answer_words"]) == (0.0, None, None)


def test_the_reference_text_stands_in_where_there_are_no_short_answers() -> None:
    long = Question(id="q", text="Why?", reference="Because the lamp burns oil")
    assert one(trajectory(answer="because the lamp burns oil"), long)["em"] == 1.0
    assert one(trajectory(answer="oil"), Question(id="q", text="Why?"))["f1"] is None


def test_parse_rate_is_the_share_of_actions_that_were_not_malformed() -> None:
    events = (call("ok"), call("malformed"), call("free"), call("ok"), search())
    found = one(trajectory(answer="x", events=events, seconds=3.0))
    assert found["parse_rate"] == 3 / 4
    assert one(trajectory(events=(call("free"),)))["parse_rate"] == 1.0
    assert one(trajectory(events=()))["parse_rate"] is None
    assert (found["calls"], found["searches"], found["seconds"]) == (4, 1, 3.0)
    assert (found["prompt_tokens"], found["cached_tokens"], found["new_tokens"]) == (400, 160, 40)


def test_a_question_counts_once_and_nulls_are_skipped_and_counted() -> None:
    questions = [Question(id=i, text="?", answers=("yes",)) for i in ("a", "b", "c")]
    made = [
        trajectory("a0", "a", answer="yes"),
        trajectory("a1", "a", answer="no"),
        trajectory("b0", "b", answer="yes"),
        trajectory("b1", "b", answer="yes"),
        trajectory("c0", "c", answer="no"),
        trajectory("c1", "c", answer="no"),
    ]
    given = dict(
        [
            score("a0", "lexical_support", 0.4),
            score("a1", "lexical_support", None),
            score("b0", "lexical_support", None),
            score("b1", "lexical_support", None),
            score("c0", "lexical_support", 0.0),
            score("c1", "lexical_support", 0.2),
        ]
    )
    values, nulls = values_by_question(values_of_samples(questions, made, given, NAMES, {"lexical_support": 1.0}))
    assert [values[i]["em"] for i in "abc"] == [0.5, 1.0, 0.0]
    assert [values[i]["lexical_support"] for i in "abc"] == [0.4, None, pytest.approx(0.1)]
    assert (nulls["lexical_support"], nulls["em"]) == (3, 0)
    arm = make_arm("base", "mrag", "base", questions, made, given, NAMES, {"lexical_support": 1.0})
    support = arm.measures["lexical_support"]
    assert support.mean == pytest.approx(0.25), "the mean over the two questions that have a value"
    assert (support.n, support.nulls) == (2, 3)
    assert arm.measures["em"].mean == pytest.approx(0.5)


def test_reward_is_there_only_where_all_its_scores_were_asked_for() -> None:
    made = trajectory(answer="Pell")
    assert "reward" not in measure(QUESTION, made, {}, ("em",), {"f1": 1.0})


def test_a_longer_answer_gains_no_precision() -> None:
    short, long = one(trajectory(answer="Pell")), one(trajectory(answer="Ada Pell of the harbour in Velm"))
    assert (short["token_precision"], short["token_recall"]) == (1.0, 1.0)
    assert (long["token_precision"], long["token_recall"]) == (pytest.approx(2 / 6), 1.0)
    cut = one(trajectory(answer="Pell", status="out_of_budget"))
    assert (cut["token_precision"], cut["token_recall"]) == (0.0, 0.0), "strict"
    assert one(trajectory(answer="x"), Question(id="q", text="?"))["token_precision"] is None


def test_correctness_f1_is_the_harmonic_mean_of_recall_and_precision() -> None:
    made = trajectory(answer="Pell")
    given = dict([score("t", "correctness", 0.9), score("t", "precision", 0.3)])
    names = ("correctness", "precision")
    assert measure(QUESTION, made, given, names, {})["correctness_f1"] == pytest.approx(0.45)
    unread = dict([score("t", "correctness", 0.9), score("t", "precision", None)])
    assert measure(QUESTION, made, unread, names, {})["correctness_f1"] is None
    assert "correctness_f1" not in measure(QUESTION, made, given, ("correctness",), {})
    assert (harmonic_mean(0.0, 0.0), harmonic_mean(1.0, 1.0), harmonic_mean(None, 1.0)) == (0.0, 1.0, None)


def support(*runs: list[int | None] | None) -> Score:
    claims = {"part": "claims", "run": 0, "text": ""}
    verdicts = [{"part": "support", "run": run, "scores": scores} for run, scores in enumerate(runs)]
    return Score(trajectory="t", name="faithfulness", value=0.5, verdicts=(claims, *verdicts))


def test_the_share_of_unattributed_claims_comes_from_the_stored_verdicts() -> None:
    assert unattributed(support([1, 0, -1, 1], [1, 1, 1, -1])) == 0.375, "a claim supported in part is not attributed"
    assert unattributed(support([1, 1])) == 0.0
    assert unattributed(support([1, None, -1], [1, -1], None)) == 0.5, "only runs that read every claim"
    assert unattributed(support(None, [None])) is None
    assert unattributed(None) is None
    found = measure(QUESTION, trajectory(answer="Pell"), {("t", "faithfulness"): support([-1])}, ("faithfulness",), {})
    assert found["unattributed"] == 1.0


def test_unattributed_sentences_by_rule() -> None:
    hit = Passage(id="d#0", document_id="d", text="Ada Pell keeps it.")
    found = one(trajectory(answer="Ada Pell. Whales sing.", passages=(hit,)), lexical_support=0.5)
    assert found["unattributed_rule"] == 0.5
    assert one(trajectory(answer="Ada Pell. Whales sing."))["unattributed_rule"] == 1.0
    assert one(trajectory(answer="Yes."))["unattributed_rule"] is None
    reasons = trajectory(answer="SUPPORTS", passages=(hit,)).model_copy(update={"explanation": "Ada Pell."})
    assert one(reasons)["unattributed_rule"] == 0.0, "of a label, that of its reasons"
    for failure in (trajectory(answer=""), trajectory(answer="Ada Pell.", passages=(hit,), status="failed")):
        assert one(failure)["unattributed_rule"] == 1.0, "strict"


def test_judged_scores_are_given_on_the_papers_own_scales_too() -> None:
    names, made = ("correctness", "faithfulness"), trajectory(answer="Pell")
    question = Question(id="q", text="Who?", reference="Ada Pell")
    given = dict([score("t", "correctness", 0.5), score("t", "faithfulness", 0.75)])
    found = measure(question, made, given, names, {})
    assert (found["correctness_raw"], found["faithfulness_raw"]) == (0.5, 0.5)
    unanswered = measure(question, trajectory(answer="", status="unparsed"), given, names, {})
    assert (unanswered["correctness_raw"], unanswered["faithfulness_raw"]) == (-1.0, -1.0)
    arm = make_arm("base", "mrag", "base", [question], [made], given, names, {})
    assert arm.measures["correctness_raw"].mean == 0.5


@pytest.mark.parametrize("status", ["finished", "out_of_budget", "unparsed", "failed"])
@pytest.mark.parametrize("answer", ["Pell", ""])
def test_every_form_of_a_score_is_the_same_on_both_scales(status: Status, answer: str) -> None:
    names, question = ("correctness", "faithfulness"), QUESTION.model_copy(update={"reference": "Ada Pell"})
    given = dict([score("t", "correctness", 1.0), score("t", "faithfulness", 0.5)])
    found = measure(question, trajectory(answer=answer, status=status), given, names, {})
    for name, width, low in (("correctness", 3, -1), ("faithfulness", 2, -1)):
        for form in ("", "_as_returned", "_lenient"):
            value, raw = found[name + form], found[f"{name}_raw{form}"]
            assert raw == (None if value is None else width * value + low), (name, form)
    if status == "out_of_budget" and answer:
        assert (found["correctness_as_returned"], found["correctness_raw_as_returned"]) == (1.0, 2.0)
        assert found["correctness_raw"] == -1.0
        assert (found["token_recall"], found["token_recall_as_returned"]) == (0.0, found["token_recall_lenient"])


def test_figure_2_counts_an_answer_at_the_end_of_the_budget_and_0_where_there_is_none() -> None:
    """Salemi et al. 2025: .6 out of budget, .9, and a question without a response."""
    questions = [QUESTION.model_copy(update={"id": name, "reference": "Pell built it."}) for name in "abc"]
    made = [
        trajectory("a", "a", answer="Pell", status="out_of_budget"),
        trajectory("b", "b", answer="Pell"),
        trajectory("c", "c", status="out_of_budget"),
    ]
    given = dict([score("a", "correctness", 0.6), score("b", "correctness", 0.9), score("c", "correctness", 0.0)])
    arm = make_arm("base", "mrag", "base", questions, made, given, ["correctness"], {"correctness": 1.0})
    for name in ("correctness", "reward"):
        means = [arm.measures[name + form].mean for form in ("_as_returned", "", "_lenient")]
        assert means == [pytest.approx(mean) for mean in (0.5, 0.3, 0.75)]
    assert (arm.measures["answered"].mean, arm.measures["returned"].mean) == (
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
    )


def test_abstaining_does_not_raise_a_methods_means() -> None:
    """An answer without claims has faithfulness 0, and all of its claims are unattributed."""
    questions = [QUESTION, QUESTION.model_copy(update={"id": "q2"})]
    made = [trajectory("t1", answer="Pell"), trajectory("t2", "q2", answer="I do not know.")]
    supported = score("t1", "faithfulness", 0.75, {"part": "support", "scores": [1, 0]})
    abstaining = score("t2", "faithfulness", 0.0, {"part": "support", "scores": []})
    given, names = dict([supported, abstaining]), ("faithfulness",)
    arm = make_arm("base", "mrag", "base", questions, made, given, names, {"faithfulness": 1.0})
    means = {name: arm.measures[name].mean for name in ("faithfulness", "reward", "unattributed")}
    assert means == {"faithfulness": 0.375, "reward": 0.375, "unattributed": 0.75}


@pytest.mark.parametrize(("value", "measured"), [(0.0, 0.0), (None, None)])
def test_an_arm_without_retrieval_has_the_faithfulness_that_its_answers_were_given(
    value: float | None, measured: float | None
) -> None:
    """0 as the paper's algorithm 4 has it, or none."""
    given = dict([score("t", "faithfulness", value)])
    values, _ = values_by_question(
        values_of_samples([QUESTION], [trajectory(answer="Pell")], given, ("faithfulness",), {})
    )
    assert values["q"]["faithfulness"] == measured
