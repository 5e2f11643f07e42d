"""No failure scores above a wrong answer: every score and measure against every way to end without a right answer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.core.config import SelectConfig
from ratchet.core.plugins import known_plugins
from ratchet.core.records import Label, Note, Question, Score, Trajectory
from ratchet.evaluation.comparisons import primary_measure
from ratchet.evaluation.formats import shown_measures
from ratchet.evaluation.measures.measures import (
    AS_RETURNED,
    DERIVED,
    FORMS,
    LENIENT,
    OTHERS,
    RAW,
    Measure,
    form_of,
    measure,
    measure_of,
)
from ratchet.evaluation.measures.verdicts import MACRO_F1
from ratchet.evaluation.results import Arm, Results
from ratchet.inference.completion import Message, SamplingParams
from ratchet.inference.scripted import ScriptedEngine
from ratchet.rewards import scoring
from ratchet.rewards.reward import load_reward
from ratchet.rewards.selection import select
from ratchet.rewards.summary import best_reward, mean_reward
from ratchet.rounds.adapters import dev_rewards
from ratchet.sampling.store import Trajectories
from tests.helpers.arms import make_arm
from tests.helpers.reward_cases import (
    judge_reply,
    make_config,
    material,
    score_with,
    trajectory,
)
from tests.helpers.tiny import tiny_format

NAMES: tuple[str, ...] = tuple(known_plugins("rewards"))
PEOPLE = ("Ada Torrin", "Bo Lind", "Cy Ost")
QUESTIONS = [
    Question(
        id=f"q{i}",
        text=f"Who built harbour {i}?",
        answers=(PEOPLE[i % 3],),
        reference=f"{PEOPLE[i % 3]} built it.",
        nuggets=(PEOPLE[i % 3],),
        labels=tuple(Label(name=name, meaning=name) for name in PEOPLE),
        label=PEOPLE[i % 3],
    )
    for i in range(7)
]
SCALED = [name + RAW for name in NAMES if load_reward(name).scale]
EVERY = [*(name + form for name in (*NAMES, *SCALED, *DERIVED) for form in FORMS), *OTHERS]
MEASURED = [
    m
    for m in map(measure_of, EVERY)
    if m.group in ("quality", "retrieval") and m.better and LENIENT not in m.name and m.name not in MACRO_F1
]
"""All but macro-F1, in which a wrong verdict costs the precision of its label as well."""


def measured(ending: str) -> list[Measure]:
    """The measures that count such an ending as a failure."""
    is_returned = ending == "out of budget with a right answer"
    return [m for m in MEASURED if not (is_returned and m.name.endswith(AS_RETURNED))]


def gold(question: int) -> str:
    return PEOPLE[question % 3]


def wrong(question: int) -> str:
    return PEOPLE[(question + 1) % 3]


def reported(one: Trajectory, reward: float) -> Trajectory:
    """With what the agent made of its work."""
    note = Note(role="agent", text="", reward=reward, at=0.0)
    return one.model_copy(update={"events": (*one.events, note)})


def finished(question: int, answer: str, documents: Sequence[str]) -> Trajectory:
    return reported(trajectory(0, answer, f"q{question}", documents=documents), 0.1)


ARM = [
    finished(0, gold(0), [gold(0), "It lies by the sea"]),
    finished(1, wrong(1), ["It lies by the sea"]),
    finished(2, wrong(2), [wrong(2)]),
    finished(3, gold(3), []),
    finished(4, "Yes.", ["It lies by the sea"]),
    finished(5, "I cannot tell", ["It lies by the sea"]),
    finished(6, f"{gold(6)}. {wrong(6)}. Whales sing", [gold(6)]),
]


def failures(question: int) -> dict[str, Trajectory]:
    """Every way to end without an answer that counts."""
    said: dict[str, dict[str, Any]] = {
        "failed": {"status": "failed", "answer": ""},
        "failed after a right answer": {"status": "failed", "documents": [gold(question)]},
        "unparsed": {"status": "unparsed", "answer": ""},
        "unparsed with a right answer": {"status": "unparsed", "documents": [gold(question)]},
        "out of budget": {"status": "out_of_budget", "answer": " \n"},
        "out of budget with a right answer": {"status": "out_of_budget", "documents": [gold(question)]},
        "empty": {"answer": ""},
        "empty with documents": {"answer": "\t", "documents": [gold(question)]},
    }
    made = {
        name: reported(
            trajectory(9, **{"answer": gold(question), "question": f"q{question}", "key": f"{name} {question}", **one}),
            1,
        )
        for name, one in said.items()
    }
    reasons = {"explanation": gold(question), "key": f"reasons alone {question}"}
    return {**made, "reasons alone": made["empty with documents"].model_copy(update=reasons)}


FAILURES = tuple(failures(0))


def judge(_: str, params: SamplingParams, messages: Sequence[Message]) -> str:
    """Takes a wrong answer for one, and words of not knowing for an abstention."""
    given = material(messages)
    if "aspect" in given:
        said = given["generated_output"]
        score = 2 if given["aspect"]["aspect"] in said else 0 if "cannot tell" in said else -1
        return json.dumps({"score": score, "rationale": ""})
    return judge_reply(given)


def apart(texts: Sequence[str]) -> np.ndarray:
    """An embedder to which no two texts are alike."""
    return np.eye(16, dtype=np.float32)[: len(texts)]


Scores = dict[tuple[str, str], Score]


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Scores:
    """Every score of the arm and of every failure."""
    engine = ScriptedEngine(tiny_format(), judge, max_context=32_000)
    folder = tmp_path_factory.mktemp("endings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "open_engines", lambda *_: {"judge": engine})
        patch.setattr(scoring, "open_embedder", lambda _: apart)
        made = [*ARM, *(one for i in range(len(QUESTIONS)) for one in failures(i).values())]
        return score_with(make_config(folder, QUESTIONS), QUESTIONS, made, NAMES, folder / "scores")


def arm_of(made: Sequence[Trajectory], scores: Scores, weights: dict[str, float] | None = None) -> Arm:
    return make_arm("a", "s", "base", QUESTIONS, made, scores, NAMES, weights or {"f1": 1.0})


@pytest.mark.parametrize("ending", FAILURES)
def test_no_measure_puts_a_failure_above_a_wrong_answer(scores: Scores, ending: str) -> None:
    for weights in ({"f1": 1.0}, {"correctness": 4.0, "faithfulness": 1.0}, {"lexical_support": 1.0, "precision": 2.0}):
        wrong_values = measure(QUESTIONS[1], ARM[1], scores, NAMES, weights)
        failed_values = measure(QUESTIONS[1], failures(1)[ending], scores, NAMES, weights)
        for one in measured(ending):
            if wrong_values[one.name] is None:
                continue
            before, after = wrong_values[one.name], failed_values[one.name]
            assert before is not None and after is not None, f"{one.name}: a failure is left out of no mean"
            assert after <= before if one.better == "higher" else after >= before, one.name


@pytest.mark.slow
@pytest.mark.parametrize("ending", FAILURES)
def test_no_mean_gains_by_a_trajectory_that_fails(scores: Scores, ending: str) -> None:
    weights = {"correctness": 4.0, "faithfulness": 1.0}
    before = arm_of(ARM, scores, weights).measures
    for i in range(len(ARM)):
        after = arm_of([*ARM[:i], failures(i)[ending], *ARM[i + 1 :]], scores, weights).measures
        for one in measured(ending):
            old, new = before[one.name].mean, after[one.name].mean
            if old is not None:
                assert new is not None, one.name
                sign = 1 if one.better == "higher" else -1
                assert sign * new <= sign * old + 1e-12, f"{one.name}, question {i}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ending", FAILURES)
def test_no_reward_puts_a_failure_above_a_wrong_answer(scores: Scores, name: str, ending: str) -> None:
    failure = failures(1)[ending]
    mine: list[dict[str, float]] = [{name: 1.0}, {name: 1.0, "f1": 3.0}, {name: 1.0, "correctness": 0.5}]
    if load_reward(name).is_cost:
        mine = [{name: -0.01, "f1": 3.0}, {name: -2.0, "correctness": 0.5, "faithfulness": 0.5}]
    for weights in mine:
        choice = select(QUESTIONS[1:2], Trajectories.of([ARM[1], failure]), scores, weights, SelectConfig()).questions[
            0
        ]
        of_wrong, of_failure = choice.rewards[ARM[1].key], choice.rewards[failure.key]
        assert of_wrong is not None and failure.key not in choice.kept
        if failure.status == "failed":
            assert of_failure is None, "it is sampled again"
        else:
            assert of_failure is not None and of_failure <= of_wrong


def test_an_empty_answer_is_worth_nothing_and_words_of_not_knowing_keep_the_papers_scale(scores: Scores) -> None:
    assert scores[failures(5)["empty"].key, "correctness"].value == 0.0
    assert scores[ARM[5].key, "correctness"].value == pytest.approx(1 / 3)
    assert scores[ARM[1].key, "correctness"].value == 0.0
    assert {scores[failures(0)["reasons alone"].key, name].value for name in NAMES} == {0.0}


@pytest.mark.parametrize(("setting", "value", "raw"), [("worst", 0.0, -1.0), ("abstention", 1 / 3, 0.0)])
def test_an_empty_answer_may_have_figure_23s_value_of_an_abstention(
    tmp_path: Path, setting: str, value: float, raw: float
) -> None:
    empty, weights = failures(1)["empty"], {"correctness": 4.0, "faithfulness": 1.0}
    config = make_config(tmp_path, QUESTIONS, rewards={"empty_response": setting})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "open_engines", lambda *_: {"judge": ScriptedEngine(tiny_format(), judge)})
        scores = score_with(config, QUESTIONS, [empty], [*weights], tmp_path / "scores")
    values = measure(QUESTIONS[1], empty, scores, [*weights], weights)
    assert [values[name] for name in ("correctness", "faithfulness", "em")] == pytest.approx([value, 0.0, 0.0])
    assert (values["correctness_raw"], values["reward"]) == pytest.approx((raw, 0.8 * value))
    choice = select(QUESTIONS[1:2], Trajectories.of([empty]), scores, weights, SelectConfig(min_reward=None)).questions[
        0
    ]
    assert choice.rewards[empty.key] == pytest.approx(0.8 * value) and not choice.kept


def test_a_question_that_cannot_be_scored_is_null_however_it_ended() -> None:
    bare = Question(id="q0", text="Why?")
    for failure in failures(0).values():
        values = measure(bare, failure, {(failure.key, "precision"): null(failure)}, ("precision",), {"precision": 1.0})
        assert {values[name] for name in ("accuracy", "em", "f1", "token_recall", "precision", "reward")} == {None}


def null(made: Trajectory) -> Score:
    return Score(trajectory=made.key, name="precision", value=None, reason="the question has no reference")


def test_a_system_without_documents_is_not_measured_against_them_by_its_failures(scores: Scores) -> None:
    arm = arm_of([ARM[3], failures(0)["unparsed"], failures(1)["empty"]], scores)
    assert arm.measures["answer_recall"].mean is None
    assert (arm.measures["faithfulness"].mean, arm.measures["unattributed"].mean) == (0.0, 1.0), "no claim is supported"
    unscored = {key: found for key, found in scores.items() if key != (ARM[3].key, "faithfulness")}
    unscored[ARM[3].key, "faithfulness"] = null(ARM[3]).model_copy(update={"name": "faithfulness"})
    arm = arm_of([ARM[3], failures(0)["unparsed"], failures(1)["empty"]], unscored)
    assert (arm.measures["faithfulness"].mean, arm.measures["unattributed"].mean) == (None, None)
    assert arm.measures["f1"].mean == pytest.approx(1 / 3)


def test_lenient_measures_look_at_answers_alone_and_are_shown_where_there_is_a_gap(scores: Scores) -> None:
    def results(*made: Trajectory) -> Results:
        return Results(
            round=1, split="test", questions=len(made), samples=1, seed=0, resamples=10, primary="f1",
            arms=(arm_of(made, scores),), comparisons=(), headline="", numbers="",
        )  # fmt: skip

    found = results(ARM[0], failures(1)["unparsed with a right answer"], failures(2)["empty"])
    assert found.arms[0].measures["correctness"].mean == pytest.approx(1 / 3)
    assert found.arms[0].measures["correctness_lenient"].mean == 1.0
    assert found.arms[0].measures["unattributed"].mean == pytest.approx(2 / 3)
    assert found.arms[0].measures["unattributed_lenient"].mean == 0.0
    assert {"correctness", "correctness_lenient", "reward_lenient"} <= set(shown_measures(found, "quality"))
    shown = shown_measures(results(*ARM), "quality")
    assert "correctness" in shown and "correctness_lenient" not in shown and "reward_lenient" not in shown


@pytest.mark.parametrize(("keep", "value"), [(("finished",), 0.0), (("finished", "out_of_budget"), 1.0)])
def test_what_ended_out_of_budget_is_worth_its_answer_only_where_it_may_be_kept(
    scores: Scores, tmp_path: Path, keep: tuple[Any, ...], value: float
) -> None:
    """In selection, in the choice of an adapter and in the evaluation's primary measure alike."""
    cut, weights, rule = failures(1)["out of budget with a right answer"], {"f1": 1.0}, SelectConfig(keep_status=keep)
    selection = select(QUESTIONS[1:2], Trajectories.of([ARM[1], cut]), scores, weights, rule)
    assert selection.questions[0].rewards[cut.key] == value
    assert (best_reward(selection), mean_reward(selection)) == (value, value / 2)
    config = make_config(tmp_path, QUESTIONS, rewards={"select": {"keep_status": list(keep)}})
    assert dev_rewards(config.rewards, QUESTIONS, [cut], scores) == {QUESTIONS[1].id: value}
    values, primary = measure(QUESTIONS[1], cut, scores, NAMES, weights), primary_measure(config, QUESTIONS)
    assert values[primary] == values["reward" + form_of(primary)] == value
    arm = make_arm("a", "s", "base", QUESTIONS[1:2], [cut], scores, NAMES, weights, keep)
    assert arm.answered == ({QUESTIONS[1].id: 1.0} if value else {})
