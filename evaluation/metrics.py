"""What is measured of one trajectory, and how trajectories become one value a question.

A measure is a number, or None where it cannot be told (a null score, a question without a reference, no action with
a schema). None is left out of means and counted, never taken for zero.

Strict and lenient: `em` and `f1` count a trajectory that did not finish as 0; `em_lenient` and `f1_lenient` look only
at trajectories that have an answer. The gap between them is what endings cost, so both stand beside the parse rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ratchet.records import Question, Score, Status, Trajectory
from rewards.rules import exact_match, token_f1
from rewards.selection import reward

Scores = Mapping[tuple[str, str], Score]
"""Scores by (trajectory key, score name), as `rewards.scoring` returns them."""
Values = dict[str, float | None]
"""Measure name to value."""


@dataclass(frozen=True)
class Measure:
    name: str
    title: str
    group: Literal["quality", "ending", "cost"]
    better: Literal["higher", "lower", ""] = ""
    """Empty where neither direction is good in itself."""
    digits: int = 3


MEASURES = (
    Measure("em", "Exact match, strict", "quality", "higher"),
    Measure("f1", "F1, strict", "quality", "higher"),
    Measure("em_lenient", "Exact match, lenient", "quality", "higher"),
    Measure("f1_lenient", "F1, lenient", "quality", "higher"),
    Measure("correctness", "Nugget correctness (judge)", "quality", "higher"),
    Measure("faithfulness", "Faithfulness (judge)", "quality", "higher"),
    Measure("nugget_containment", "Nugget containment (rule)", "quality", "higher"),
    Measure("lexical_support", "Lexical support (rule)", "quality", "higher"),
    Measure("reward", "Reward, as in training", "quality", "higher"),
    Measure("answer_words", "Answer length, words", "quality", "", 1),
    Measure("parse_rate", "Actions that parsed", "ending", "higher"),
    Measure("finished", "Finished", "ending", "higher"),
    Measure("unparsed", "Unparsed", "ending", "lower"),
    Measure("out_of_budget", "Out of budget", "ending", "lower"),
    Measure("failed", "Failed", "ending", "lower"),
    Measure("calls", "Model calls", "cost", "", 1),
    Measure("searches", "Searches", "cost", "", 1),
    Measure("prompt_tokens", "Prompt tokens", "cost", "", 0),
    Measure("cached_tokens", "... of them cached", "cost", "", 0),
    Measure("new_tokens", "New tokens", "cost", "", 0),
    Measure("seconds", "Seconds", "cost", "", 1),
)
BY_NAME = {measure.name: measure for measure in MEASURES}


def references(question: Question) -> tuple[str, ...]:
    """What an answer is compared with: the short answers, or the reference text where there are none."""
    return question.answers or ((question.reference,) if question.reference else ())


def measure(
    question: Question,
    trajectory: Trajectory,
    scores: Scores,
    names: Sequence[str],
    weights: Mapping[str, float],
) -> Values:
    """Every measure of one trajectory.

    `names` are the scores that were asked for. `em` and `f1` are always computed here, so that they are strict;
    `reward` is there when every score that `weights` names was asked for.
    """
    values: Values = {
        **_answer_match(question, trajectory),
        **{name: _value(scores, trajectory, name) for name in names if name not in ("em", "f1")},
    }
    if weights and set(weights) <= set(names):
        values["reward"] = reward(trajectory.key, scores, weights)
    answered = bool(trajectory.answer.strip())
    with_schema = [call for call in trajectory.model_calls if call.parse != "free"]
    parsed = sum(call.parse == "ok" for call in with_schema)
    values["answer_words"] = float(len(trajectory.answer.split())) if answered else None
    values["parse_rate"] = parsed / len(with_schema) if with_schema else None
    values |= {status: float(trajectory.status == status) for status in get_args(Status)}
    values |= {
        "calls": float(len(trajectory.model_calls)),
        "searches": float(len(trajectory.searches)),
        "prompt_tokens": float(sum(call.prompt_tokens for call in trajectory.model_calls)),
        "cached_tokens": float(sum(call.cached_tokens for call in trajectory.model_calls)),
        "new_tokens": float(sum(call.new_tokens for call in trajectory.model_calls)),
        "seconds": trajectory.seconds,
    }
    return values


def _answer_match(question: Question, trajectory: Trajectory) -> Values:
    expected = references(question)
    if not expected:
        return dict.fromkeys(("em", "f1", "em_lenient", "f1_lenient"))
    em, f1 = exact_match(trajectory.answer, expected), token_f1(trajectory.answer, expected)
    finished, answered = trajectory.status == "finished", bool(trajectory.answer.strip())
    return {
        "em": em if finished else 0.0,
        "f1": f1 if finished else 0.0,
        "em_lenient": em if answered else None,
        "f1_lenient": f1 if answered else None,
    }


def _value(scores: Scores, trajectory: Trajectory, name: str) -> float | None:
    score = scores.get((trajectory.key, name))
    return None if score is None else score.value


def by_question(
    questions: Iterable[Question],
    trajectories: Iterable[Trajectory],
    scores: Scores,
    names: Sequence[str],
    weights: Mapping[str, float],
) -> tuple[dict[str, Values], dict[str, int]]:
    """(question id -> its values, each the mean over its samples without nulls; measure -> null trajectories).

    Questions without a trajectory are left out.
    """
    samples: dict[str, list[Values]] = {}
    known = {question.id: question for question in questions}
    for trajectory in trajectories:
        question = known.get(trajectory.question_id)
        if question is not None:
            row = measure(question, trajectory, scores, names, weights)
            samples.setdefault(question.id, []).append(row)
    values = {question_id: _mean_of(samples[question_id]) for question_id in known if question_id in samples}
    nulls: dict[str, int] = {}
    for rows in samples.values():
        for row in rows:
            for name, value in row.items():
                nulls[name] = nulls.get(name, 0) + (value is None)
    return values, nulls


def _mean_of(rows: Sequence[Values]) -> Values:
    means: Values = {}
    for name in rows[0]:
        known = [value for row in rows if (value := row[name]) is not None]
        means[name] = sum(known) / len(known) if known else None
    return means
