"""The measures of one trajectory, and how trajectories become one value per question.

A measure is a number, or None where it is undefined (a null score, a question without a reference, no action). Means
skip None, which is counted and never taken for zero.

Strict and lenient: everything of group 'quality' is strict. A trajectory that did not finish, or has no answer, counts
as the worst (0, or 1 of what is better low), so that no failure scores above a wrong answer or is missing from a mean;
None only where its question cannot be scored (`rewards.reward`). The measures whose names end in `_lenient` look only
at trajectories that have an answer, however they ended. The gap between the two is what endings cost, so both stand
beside the parse rate; in tables, of scores that were asked for, where there is a gap. `_as_returned` is strict but for
trajectories out of budget, which count with the answer that they return, as in figure 2 of mRAG's paper (of .6 out of
budget, .9, and none: .5, where strict has .3 and lenient .75). It is the primary measure's form where
`rewards.select.keep_status` has `out_of_budget`: selection, the choice of an adapter and the evaluation then count such
a trajectory alike.

The papers give correctness from -1 to 2 and faithfulness from -1 to 1 (Salemi et al. 2025, arXiv 2506.10844, table 1):
the measures with `_raw` in their names are on those scales, beside the normalised ones and in the same forms.

Length alone does not win: token precision stands beside token recall, and judged precision beside nugget
correctness, which is a recall; `correctness_f1` is their harmonic mean. Derived from stored verdicts, without a call:
`unattributed`, the share of an answer's claims that its documents do not fully support.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal, get_args

from ratchet.core.errors import UserError
from ratchet.core.plugins import is_path, short_name
from ratchet.core.records import Question, Recall, Score, Status, Trajectory
from ratchet.core.text import Normalise, normalise_answer
from ratchet.evaluation.measures.estimates import LEVEL, Difference
from ratchet.evaluation.measures.retrieval import LOSSES, lookups, losses, retrieval_measures
from ratchet.rewards.reward import RETURNED, has_answer, load_reward, strict_value
from ratchet.rewards.rules import (
    accuracy,
    exact_match,
    references,
    token_f1,
    token_precision,
    token_recall,
    unattributed_sentences,
)
from ratchet.rewards.selection import reward, worst_reward

Scores = Mapping[tuple[str, str], Score]
"""Scores by (trajectory key, score name), as `rewards.scoring` returns them."""
Values = dict[str, float | None]
"""Measure name to value."""


LENIENT = "_lenient"
"""The suffix of a measure over only the trajectories with an answer."""
AS_RETURNED = "_as_returned"
"""The suffix of a measure that counts an answer at the end of the budget."""
FORMS = {"": "strict", AS_RETURNED: "as returned", LENIENT: "lenient"}
RAW = "_raw"
"""The suffix of a score on the scale of the judge; that of a form stands behind it."""


@dataclass(frozen=True)
class Measure:
    """A measure. `macro_f1` has a value for a question set only (`evaluation.measures.verdicts`)."""

    name: str
    what: str
    """The measure's name in the heading of a column."""
    group: Literal["quality", "retrieval", "ending", "cost"] = "quality"
    better: Literal["higher", "lower", ""] = "higher"
    """Empty where neither direction is good in itself."""
    digits: int = 3
    form: str = ""
    """A word of FORMS, or the unit."""
    made_by: Literal["judge", "rule", ""] = ""

    @property
    def short(self) -> str:
        """The measure's name in a sentence."""
        return f"{self.what} ({self.made_by})" if self.made_by else self.what

    @property
    def title(self) -> str:
        """The measure's name in a row of a table."""
        return f"{self.short}, {self.form}" if self.form else self.short

    @property
    def heading(self) -> str:
        """The measure's name in a narrow column of a table of methods."""
        return {"accuracy": "accuracy", "macro_f1": "macro-F1", "em": "EM"}.get(strict_form(self.name), self.what)


def strict_form(name: str) -> str:
    """The strict form of a measure."""
    return name.removesuffix(LENIENT).removesuffix(AS_RETURNED)


def form_of(name: str) -> str:
    """The suffix of a measure that is not strict."""
    return name.removeprefix(strict_form(name))


MATCHES = ("accuracy", "macro_f1", "em", "f1", "token_precision", "token_recall")
"""Measures, in every form, that a question with a label, or an answer, has without being asked for."""
DERIVED = {
    measure.name: measure
    for measure in (
        Measure("macro_f1", "Macro-F1 of labels"),
        Measure("token_precision", "Token precision"),
        Measure("token_recall", "Token recall"),
        Measure("correctness_f1", "... F1 of the two", made_by="judge"),
        Measure("unattributed", "Unattributed claims", better="lower", made_by="judge"),
        Measure("unattributed_rule", "Unattributed sentences", better="lower", made_by="rule"),
        Measure("reward", "Reward"),
    )
}
"""Measures that are no single reward's, strict."""
OTHERS = {
    measure.name: measure
    for measure in (
        Measure("answer_words", "Answer length", better="", digits=1, form="words"),
        Measure("answer_recall", "Answer in what was retrieved", "retrieval"),
        Measure("gold_recall", "Gold documents retrieved", "retrieval"),
        Measure("answer_recall_returned", "Answer in documents returned", "retrieval"),
        Measure("gold_recall_returned", "Gold documents returned", "retrieval"),
        Measure("not_retrieved", "Wrong: answer not retrieved", "retrieval", ""),
        Measure("not_returned", "Wrong: answer not returned", "retrieval", ""),
        Measure("misread", "Wrong: answer returned", "retrieval", ""),
        Measure("passages", "Passages retrieved", "retrieval", "", 1),
        Measure("parse_rate", "Actions that parsed", "ending"),
        Measure("answered", "Finished with an answer", "ending"),
        Measure("returned", "Returned an answer", "ending"),
        Measure("finished", "Finished", "ending"),
        Measure("unparsed", "Unparsed", "ending", "lower"),
        Measure("out_of_budget", "Out of budget", "ending", "lower"),
        Measure("failed", "Failed", "ending", "lower"),
        Measure("calls", "Model calls", "cost", "", 1),
        Measure("searches", "Searches", "cost", "", 1),
        Measure("tool_calls", "Tool calls", "cost", "", 1),
        Measure("failed_lookups", "... of them without an answer", "cost", "lower", 2),
        Measure("recalled", "Pieces recalled from memory", "cost", "", 1),
        Measure("prompt_tokens", "Prompt tokens", "cost", "", 0),
        Measure("cached_tokens", "... of them cached", "cost", "", 0),
        Measure("new_tokens", "New tokens", "cost", "", 0),
        Measure("thought_tokens", "... of them of thoughts", "cost", "", 0),
        Measure("seconds", "Seconds", "cost", "", 1),
    )
}
"""Measures that have one form."""


def measure_of(name: str) -> Measure:
    """The measure of this name. Raises KeyError."""
    if name in OTHERS:
        return OTHERS[name]
    score, form = strict_form(name), form_of(name)
    made = DERIVED.get(score) or _of_reward(score.removesuffix(RAW), score.endswith(RAW))
    return replace(made, name=name, form=FORMS[form])


def _of_reward(score: str, raw: bool) -> Measure:
    try:
        reward = load_reward(score)
    except UserError:  # results may be shown where their reward's file is not
        if not of_outside_reward(score):
            raise KeyError(score) from None
        return Measure(score, short_name(score))
    if raw and reward.scale is None:
        raise KeyError(score)
    if raw and reward.scale is not None:
        low, high = reward.scale
        return Measure(score, f"... from {low:g} to {high:g}")
    if score in MATCHES:
        return Measure(score, reward.title)
    if reward.is_cost:
        return Measure(score, reward.title, "cost", "", 1)
    return Measure(score, reward.title, made_by="judge" if reward.needs_judge else "rule")


def of_outside_reward(name: str) -> bool:
    """True for a measure of a reward from outside rewards/builtin/, which a file or a module names."""
    return is_path(strict_form(name)) or "." in name


def in_order(names: Iterable[str]) -> list[str]:
    """Measures in the order of tables: matches, the scores that were asked for, what is derived, and the others."""
    given = set(names)
    last = [*(name for name in DERIVED if name not in MATCHES), *OTHERS]
    scores = [strict for name in names if (strict := strict_form(name)) not in (*MATCHES, *last)]
    every = dict.fromkeys((*MATCHES, *scores, *last))
    return [name + form for name in every for form in FORMS if name + form in given]


def direction(difference: Difference | None, name: str, level: float = LEVEL) -> Literal["better", "worse", ""]:
    """The word for a difference in a measure; empty where it is not clear, or neither direction is good in itself."""
    better = measure_of(name).better
    if difference is None or not difference.mean or not better or not difference.is_clear(level):
        return ""
    return "better" if (difference.mean > 0) == (better == "higher") else "worse"


def measure(
    question: Question,
    trajectory: Trajectory,
    scores: Scores,
    names: Sequence[str],
    weights: Mapping[str, float],
    retrieves: bool = True,
    without_documents: Collection[str] = (),
    normalise: Normalise = normalise_answer,
) -> Values:
    """Every measure of one trajectory.

    `names` are the scores that were asked for. `accuracy`, `em` and `f1` are always computed here, from the answer;
    what is derived from scores, `reward` among it, is there when every score that it needs was asked for.
    `retrieves`: whether the trajectory's arm looks anything up. `without_documents`: scores that are undefined for the
    arm, since it has no documents and its answers have no such score. `normalise`: as `rewards.normalisation` names it.
    """

    def forms(name: str, made_from: Collection[str], value: float | None, worst: float = 0.0) -> Values:
        complete = all((trajectory.key, part) in scores for part in made_from if part not in MATCHES)
        by_form: Values = {name + LENIENT: value if has_answer(trajectory) else None}
        for form, ended in (("", ("finished",)), (AS_RETURNED, RETURNED)):
            if complete and not set(without_documents) & set(made_from):
                by_form[name + form] = strict_value(value, made_from, question, trajectory, ended, worst)
            else:
                by_form[name + form] = None
        return by_form

    def score(name: str) -> float | None:
        return _value(scores, trajectory, name)

    values = forms("accuracy", ("accuracy",), accuracy(trajectory.answer, question))
    expected = references(question)
    for name, rule in (("em", exact_match), ("f1", token_f1)):
        values |= forms(name, (name,), rule(trajectory.answer, expected, normalise) if expected else None)
    for name, rule in (("token_precision", token_precision), ("token_recall", token_recall)):
        values |= forms(name, ("f1",), rule(trajectory.answer, expected, normalise) if expected else None)
    for name in names:
        if load_reward(name).is_cost:
            values[name] = score(name)
        elif name not in MATCHES:
            values |= forms(name, (name,), score(name))
        if (scale := load_reward(name).scale) is not None:
            (low, high), normalised = scale, score(name)
            raw = None if normalised is None else (high - low) * normalised + low
            values |= forms(name + RAW, (name,), raw, worst=low)
    if weights and set(weights) <= set(names):
        needed = [name for name, weight in weights.items() if weight]
        values |= forms("reward", needed, reward(trajectory, scores, weights), worst_reward(weights))
    if {"correctness", "precision"} <= set(names):
        mean = harmonic_mean(score("correctness"), score("precision"))
        values |= forms("correctness_f1", ("correctness", "precision"), mean)
    if "faithfulness" in names:
        share = unattributed(scores.get((trajectory.key, "faithfulness")))
        values |= forms("unattributed", ("faithfulness",), share, worst=1.0)
    if "lexical_support" in names:
        share = unattributed_sentences(trajectory.response, trajectory.passages)
        values |= forms("unattributed_rule", (), share, worst=1.0)
    values |= retrieval_measures(question, trajectory, retrieves)
    values |= losses(question, trajectory, values["f1"]) if retrieves else dict.fromkeys(LOSSES)
    calls = trajectory.model_calls
    values["answer_words"] = float(len(trajectory.answer.split())) if has_answer(trajectory) else None
    # Free text parses unless it was cut off.
    values["parse_rate"] = sum(call.parse != "malformed" for call in calls) / len(calls) if calls else None
    values["answered"] = float(is_answered(trajectory))
    values["returned"] = float(trajectory.status in RETURNED and has_answer(trajectory))
    values |= {status: float(trajectory.status == status) for status in get_args(Status)}
    values |= {
        "calls": float(len(calls)),
        "searches": float(len(trajectory.searches)),
        "tool_calls": float(len(trajectory.tool_calls)),
        "failed_lookups": float(len(trajectory.failed_lookups)),
        "recalled": float(sum(len(event.passages) for event in trajectory.events if isinstance(event, Recall))),
        "prompt_tokens": float(sum(call.prompt_tokens for call in calls)),
        "cached_tokens": float(sum(call.cached_tokens for call in calls)),
        "new_tokens": float(sum(call.new_tokens for call in calls)),
        "seconds": trajectory.seconds,
    }
    return values


def is_answered(trajectory: Trajectory) -> bool:
    """True where the trajectory finished with an answer: a strict measure counts others as the worst."""
    return trajectory.status == "finished" and has_answer(trajectory)


def _value(scores: Scores, trajectory: Trajectory, name: str) -> float | None:
    score = scores.get((trajectory.key, name))
    return None if score is None else score.value


def harmonic_mean(recall: float | None, precision: float | None) -> float | None:
    """Harmonic mean; None where either is None."""
    if recall is None or precision is None:
        return None
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def unattributed(faithfulness: Score | None) -> float | None:
    """The share of the answer's claims that its documents do not fully support (a verdict below 1): the mean over
    judge runs.

    Only a run with a readable verdict on every claim counts; None where there is none. Where faithfulness is 0 for lack
    of documents or of claims (`rewards.omitted_claims`), the share is 1: an abstention does not look better for it.
    """
    if faithfulness is not None and faithfulness.value == 0 and not faithfulness.verdicts:
        return 1.0
    checked = [v["scores"] for v in (faithfulness.verdicts if faithfulness else ()) if v.get("part") == "support"]
    known = [scores for scores in checked if scores is not None and None not in scores]
    shares = [fmean(score < 1 for score in scores) if scores else 1.0 for scores in known]
    return fmean(shares) if shares else None


def values_of_samples(
    questions: Iterable[Question],
    trajectories: Iterable[Trajectory],
    scores: Scores,
    names: Sequence[str],
    weights: Mapping[str, float],
    normalise: Normalise = normalise_answer,
) -> dict[str, list[Values]]:
    """By question id, the values of each of its samples.

    Questions without a trajectory are skipped. The trajectories are one arm's.
    """
    samples: dict[str, list[Values]] = {}
    known = {question.id: question for question in questions}
    trajectories = list(trajectories)
    # An arm without an answer at all may have failed before its first search.
    retrieves = any(t.passages or lookups(t) for t in trajectories) or not any(map(is_answered, trajectories))
    answered = [t for t in trajectories if has_answer(t)]
    undefined = {
        name
        for name in names
        if load_reward(name).against_documents
        and not retrieves
        and not any(_value(scores, t, name) is not None for t in answered)
    }
    thinks = any(call.thought_tokens for trajectory in trajectories for call in trajectory.model_calls)
    for trajectory in trajectories:
        question = known.get(trajectory.question_id)
        if question is not None:
            row = measure(question, trajectory, scores, names, weights, retrieves, undefined, normalise)
            if thinks:
                row["thought_tokens"] = float(sum(call.thought_tokens for call in trajectory.model_calls))
            samples.setdefault(question.id, []).append(row)
    return {question_id: samples[question_id] for question_id in known if question_id in samples}


def values_by_question(samples: Mapping[str, Sequence[Values]]) -> tuple[dict[str, Values], dict[str, int]]:
    """(question id -> its values, each the mean over its samples without nulls; measure -> null trajectories)."""
    nulls: dict[str, int] = {}
    for rows in samples.values():
        for row in rows:
            for name, value in row.items():
                nulls[name] = nulls.get(name, 0) + (value is None)
    return {question_id: _mean_of(rows) for question_id, rows in samples.items()}, nulls


def answered_measure(name: str) -> str:
    """The measure of which trajectories a measure does not count as the worst for how they ended."""
    return "returned" if name.endswith(AS_RETURNED) else "answered"


def mean_of_answered(samples: Mapping[str, Sequence[Values]], name: str) -> dict[str, float]:
    """By question id, the mean of a measure over the samples that `answered_measure` counts, where one has a value."""
    means = {}
    for question_id, rows in samples.items():
        known = [value for row in rows if row[answered_measure(name)] and (value := row[name]) is not None]
        if known:
            means[question_id] = sum(known) / len(known)
    return means


def _mean_of(rows: Sequence[Values]) -> Values:
    means: Values = {}
    for name in rows[0]:
        known = [value for row in rows if (value := row[name]) is not None]
        means[name] = sum(known) / len(known) if known else None
    return means
