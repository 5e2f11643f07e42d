"""The record of an evaluation: arms, their measures with intervals, and paired differences against the base model.

Values, and verdicts on labels, are kept per question, so that any table can be made again without a model or a
trajectory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from evaluation.measures.complementarity import Complementarity
from evaluation.measures.measures import BY_NAME, LENIENT, MATCHES, MEASURES, Scores, Values, by_question
from evaluation.measures.statistics import Interval, PairedDifference, bootstrap_interval, paired_difference
from evaluation.measures.verdicts import Verdicts, macro_f1_difference, macro_f1_interval, verdicts_of
from ratchet.files import read_record, write_atomic
from ratchet.records import Question, Record, Trajectory

BASE, PARENT, TRAINED = "base", "parent", "adapter"
MACRO_F1 = {"macro_f1": False, "macro_f1_lenient": True}
"""Measures of a question set as a whole: are they lenient?"""


class Estimate(Record):
    """The mean of a measure over questions."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    n: int
    """Questions that have a value."""
    nulls: int = 0
    """Trajectories without a value, left out of the mean."""


class Difference(Record):
    """after - before over the questions that have both; None where there are none."""

    before: float | None = None
    after: float | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    """Two-sided, paired sign-flip test."""
    n: int

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


class Arm(Record):
    """One system under one policy, on the split's questions."""

    name: str
    """'base', 'parent' (the adapter that a round sampled with), 'adapter', or a baseline's name in the config."""
    system: str
    policy: str
    """'base', or the adapter's digest."""
    trajectories: int
    statuses: dict[str, int]
    measures: dict[str, Estimate]
    kinds: dict[str, dict[str, Estimate]]
    """The same by question kind; empty when there are fewer than two kinds."""
    values: dict[str, Values]
    """Question id to measures: the mean over its samples."""
    verdicts: Verdicts | None = None
    """Of questions with labels."""


class Comparison(Record):
    """An arm against the base arm."""

    arm: str
    measures: dict[str, Difference]
    kinds: dict[str, Difference]
    """The primary measure by question kind."""


class Results(Record):
    round: int
    split: str
    """The split's name, or the benchmark's in the config."""
    title: str = ""
    """What the questions are called in a table."""
    questions: int
    samples: int
    seed: int
    resamples: int
    primary: str
    """The measure that the verdict is about, chosen before any result: `primary_measure`."""
    arms: tuple[Arm, ...]
    """Base first."""
    comparisons: tuple[Comparison, ...]
    complementarity: dict[str, Complementarity] = Field(default={})
    """By arm, where its system chooses between candidate answers."""
    verdict: str

    def arm(self, name: str) -> Arm | None:
        return next((arm for arm in self.arms if arm.name == name), None)

    def comparison(self, arm: str) -> Comparison | None:
        return next((comparison for comparison in self.comparisons if comparison.arm == arm), None)

    def shown(self, *groups: str) -> list[str]:
        """Measures of these groups that some arm has, in display order; what was not asked for only with a value."""

        def has(arm: Arm, name: str, group: str) -> bool:
            if name == "recalled":  # few systems have a memory
                return name in arm.measures and bool(arm.measures[name].mean)
            strict = arm.measures.get(name.removesuffix(LENIENT))
            if name.endswith(LENIENT) and name not in (*MATCHES, *MACRO_F1):  # only where endings make a difference
                return name in arm.measures and strict is not None and arm.measures[name].mean != strict.mean
            return name in arm.measures and (arm.measures[name].n > 0 or not (group == "retrieval" or name in MATCHES))

        return [m.name for m in MEASURES if m.group in groups and any(has(arm, m.name, m.group) for arm in self.arms)]


def primary_measure(questions: Sequence[Question], names: Sequence[str]) -> str:
    """Accuracy of labels, F1 of short answers, of long ones nugget correctness when it is asked for; else F1."""
    if any(question.label is not None for question in questions):
        return "accuracy"
    return "correctness" if "correctness" in names and not any(question.answers for question in questions) else "f1"


def make_arm(
    name: str,
    system: str,
    policy: str,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    scores: Scores,
    names: Sequence[str],
    weights: Mapping[str, float],
    resamples: int,
    seed: int,
) -> Arm:
    values, nulls = by_question(questions, trajectories, scores, names, weights)
    statuses: dict[str, int] = {}
    for trajectory in trajectories:
        statuses[trajectory.status] = statuses.get(trajectory.status, 0) + 1

    def estimates(ids: Sequence[str], with_nulls: bool) -> dict[str, Estimate]:
        made = {}
        for measure in nulls:
            known = [value for i in ids if (value := values[i][measure]) is not None]
            left_out = nulls[measure] if with_nulls else 0
            if known:
                made[measure] = _estimate(bootstrap_interval(known, resamples, seed), left_out)
            else:
                made[measure] = Estimate(mean=None, n=0, nulls=left_out)
        return made

    kinds = {
        kind: estimates([i for i in ids if i in values], with_nulls=False) for kind, ids in by_kind(questions).items()
    }
    measures = estimates(list(values), with_nulls=True)
    verdicts = verdicts_of(questions, trajectories)
    if verdicts is not None:
        for measure, lenient in MACRO_F1.items():
            measures[measure] = _estimate(macro_f1_interval(verdicts, resamples, seed, lenient), nulls=0)
    return Arm(
        name=name,
        system=system,
        policy=policy,
        trajectories=len(trajectories),
        statuses=statuses,
        measures=measures,
        kinds=kinds,
        values=values,
        verdicts=verdicts,
    )


def _estimate(found: Interval | None, nulls: int) -> Estimate:
    if found is None:
        return Estimate(mean=None, n=0, nulls=nulls)
    return Estimate(mean=found.mean, low=found.low, high=found.high, n=found.n, nulls=nulls)


def by_kind(questions: Sequence[Question]) -> dict[str, list[str]]:
    """Question ids by kind, or nothing when the questions are all of one kind."""
    kinds: dict[str, list[str]] = {}
    for question in questions:
        kinds.setdefault(question.kind or "other", []).append(question.id)
    return dict(sorted(kinds.items())) if len(kinds) > 1 else {}


def compare(base: Arm, arm: Arm, questions: Sequence[Question], primary: str, resamples: int, seed: int) -> Comparison:
    """Paired differences of `arm` against `base`, by question."""

    def difference(measure: str, ids: Sequence[str]) -> Difference:
        return measure_difference(base, arm, measure, ids, resamples, seed)

    everything = [question.id for question in questions]
    measures = {name: difference(name, everything) for name in base.measures if name in arm.measures}
    if base.verdicts is not None and arm.verdicts is not None:
        for name, lenient in MACRO_F1.items():
            measures[name] = _difference(macro_f1_difference(base.verdicts, arm.verdicts, resamples, seed, lenient))
    return Comparison(
        arm=arm.name,
        measures=measures,
        kinds={kind: difference(primary, ids) for kind, ids in by_kind(questions).items()},
    )


def measure_difference(base: Arm, arm: Arm, measure: str, ids: Sequence[str], resamples: int, seed: int) -> Difference:
    """Of one measure, over those of the questions on which both have a value."""
    pairs = [
        (before, after)
        for i in ids
        if i in base.values
        and i in arm.values
        and (before := base.values[i].get(measure)) is not None
        and (after := arm.values[i].get(measure)) is not None
    ]
    if not pairs:
        return Difference(n=0)
    return _difference(paired_difference([pair[0] for pair in pairs], [pair[1] for pair in pairs], resamples, seed))


def _difference(found: PairedDifference | None) -> Difference:
    if found is None:
        return Difference(n=0)
    return Difference(
        before=found.before, after=found.after, mean=found.mean, low=found.low, high=found.high, p=found.p, n=found.n
    )


def verdict(comparison: Comparison | None, primary: str) -> str:
    """In plain words: is the trained model better?"""
    return ". ".join(filter(None, verdict_parts(comparison, primary)))


def verdict_parts(comparison: Comparison | None, primary: str) -> tuple[str, str]:
    """(the verdict in a few words, the sentence with its numbers); no words where the numbers allow no verdict.

    Clear means that the interval excludes zero.
    """
    if comparison is None:
        return "", "The base model alone was measured: there is no adapter to compare it with."
    title = BY_NAME[primary].short
    difference = comparison.measures.get(primary, Difference(n=0))
    if difference.before is None or difference.after is None or difference.mean is None:
        return "", f"{title}: no question has a value in both arms, so base and trained cannot be compared."
    numbers = f"{title} {difference.before:.2f} -> {difference.after:.2f}: {difference.mean:+.2f}"
    if difference.low is None or difference.high is None or difference.p is None:
        return "", f"{numbers} on one question, which tells nothing about others."
    chance = "p < 0.001" if difference.p < 0.001 else f"p = {difference.p:.3f}"
    numbers = f"{numbers} [{difference.low:.2f}, {difference.high:.2f}], {chance} on {difference.n} questions"
    if not difference.clear:
        return "No clear difference", f"{numbers}."
    return f"The trained model is {'better' if difference.mean > 0 else 'worse'}", f"{numbers}."


def write_results(path: Path, results: Results) -> None:
    write_atomic(path, results.model_dump_json(indent=1) + "\n")


def read_results(path: Path) -> Results | None:
    """The stored results, or None when there are none yet."""
    return read_record(path, Results, "make it again with `python -m evaluation table`")
