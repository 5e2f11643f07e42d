"""The record of an evaluation: arms, their measures, and paired differences against the base model.

Values, and verdicts on labels, are kept per question, so that any table can be rebuilt without a model or a
trajectory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pydantic import Field
from rich.markup import escape

from evaluation.measures.complementarity import Complementarity
from evaluation.measures.estimates import Difference, Estimate
from evaluation.measures.gain import Gain, LabelFloor, QuestionChanges, gain, paired_values, question_changes
from evaluation.measures.measures import (
    AS_RETURNED,
    BY_NAME,
    MATCHES,
    MEASURES,
    Scores,
    Values,
    answered_measure,
    form_of,
    mean_of_answered,
    strict_form,
    values_by_question,
    values_of_samples,
)
from evaluation.measures.statistics import bootstrap_interval, paired_difference
from evaluation.measures.verdicts import Verdicts, macro_f1_difference, macro_f1_interval, verdicts_of
from ratchet.files import read_record
from ratchet.records import Question, Record, Trajectory
from ratchet.text import Normalise, normalise_answer

BASE, PARENT, TRAINED = "base", "parent", "adapter"
RANDOM, GOLD, BASE_AGAIN = "random selection", "gold answers", "base again"
BASE_IN_FORM, TRAINED_IN_FORM = "base in form", "adapter in form"
"""The arms of `evaluation.controls`."""
COSTS = ("calls", "prompt_tokens", "new_tokens")
"""The measures of a baseline's cost that the headline gives."""


class CostPair(Record):
    """The mean cost of a question, in one unit."""

    baseline: float
    trained: float
    ratio: float | None
    """trained / baseline; None where the baseline costs nothing."""


class BaselineComparison(Record):
    """The trained model against the best of some baselines, on the questions that both were asked."""

    name: str
    """The baseline's name in the config."""
    system: str
    candidates: int
    """How many baselines it is the best of, on the questions of `difference`: with more than one, its mean on them is
    optimistically biased."""
    difference: Difference
    """Trained - baseline in the primary measure, paired by question."""
    costs: dict[str, CostPair]
    """By measure of cost (calls, prompt_tokens, new_tokens)."""


RESERVED = (BASE, PARENT, TRAINED, RANDOM, GOLD, BASE_AGAIN, BASE_IN_FORM, TRAINED_IN_FORM)
"""Names that no baseline may have."""
MACRO_F1 = {"macro_f1": False, "macro_f1_lenient": True}
"""Measures of a question set as a whole, with whether they are lenient."""

SECTIONS = (
    ("quality", "Answers"),
    ("retrieval", "What was found"),
    ("ending", "How it ended, share"),
    ("cost", "Cost of a question"),
)


class Arm(Record):
    """One system under one policy, on the split's questions."""

    name: str
    """'base', 'parent' (the adapter that a round sampled with), 'adapter', 'random selection', 'gold answers', 'base
    again', 'base in form', 'adapter in form', or a baseline's name in the config."""
    system: str
    policy: str
    """'base', or the adapter's digest."""
    trajectories: int
    statuses: dict[str, int]
    measures: dict[str, Estimate]
    kinds: dict[str, dict[str, Estimate]]
    """The measures by question kind; empty when there are fewer than two kinds."""
    values: dict[str, Values]
    """By question id, the mean of each measure over the question's samples."""
    answered: dict[str, float]
    """By question id, the primary measure over the samples that finished with an answer, where there are any; of one as
    returned, also over those out of budget with an answer."""
    verdicts: Verdicts | None = None
    """The verdicts on questions with labels; None where there are none."""


class Comparison(Record):
    """An arm against the base arm."""

    arm: str
    measures: dict[str, Difference]
    kinds: dict[str, Difference]
    """The difference in the primary measure, by question kind."""
    gain: Gain
    """The difference in form, and in substance."""
    changes: QuestionChanges | None = None
    """The questions that the arm gained and broke; None in results from before they were counted."""


class Results(Record):
    """The evaluation of a round on one question set, as stored in results.json."""

    round: int
    split: str
    """The split's name, or the benchmark's in the config."""
    title: str = ""
    """The question set's title in tables."""
    questions: int
    samples: int
    seed: int
    resamples: int
    primary: str
    """The measure of the verdict, chosen before any result by `primary_measure`."""
    arms: tuple[Arm, ...]
    """Base first."""
    comparisons: tuple[Comparison, ...]
    complementarity: dict[str, Complementarity] = Field(default={})
    """By arm, where its system chooses between candidate answers."""
    label_floor: LabelFloor | None = None
    """What no skill at all would score; None where no question has a label."""
    best_baseline: BaselineComparison | None = None
    """The trained arm against the best of the untrained baselines; None where one of the two was not run."""
    trained_baseline: BaselineComparison | None = None
    """The trained arm against the best of the baselines with an adapter of their own; None where there is none."""
    selection: Difference | None = None
    """What selection is worth: the trained arm less the one of a random selection, in the primary measure, paired by
    question; None where one of the two was not run."""
    verdict: str

    def arm(self, name: str) -> Arm | None:
        return _named(self.arms, name)

    def comparison(self, arm: str) -> Comparison | None:
        return next((comparison for comparison in self.comparisons if comparison.arm == arm), None)

    def changes(self, arm: str) -> QuestionChanges | None:
        """The questions that an arm gained and broke against base."""
        found = self.comparison(arm)
        return found.changes if found else None

    def shown(self, *groups: str) -> list[str]:
        """The measures of these groups to show, in display order: those of any arm, optional ones if not empty."""

        def has(arm: Arm, name: str, group: str) -> bool:
            if name in ("recalled", "failed_lookups"):  # few systems have a memory, and few runs an outage
                return name in arm.measures and bool(arm.measures[name].mean)
            strict = arm.measures.get("answered" if name == "returned" else strict_form(name))
            always = name in (*MATCHES, *MACRO_F1, self.primary)
            if (form_of(name) or name == "returned") and not always:  # only where endings make a difference
                return name in arm.measures and strict is not None and arm.measures[name].mean != strict.mean
            return name in arm.measures and (arm.measures[name].n > 0 or not (group == "retrieval" or name in MATCHES))

        names = [measure.name for measure in MEASURES]
        outside = dict.fromkeys(name for arm in self.arms for name in arm.measures if name not in names)
        at = names.index("reward")
        found = [BY_NAME[name] for name in (*names[:at], *outside, *names[at:])]
        return [m.name for m in found if m.group in groups and any(has(arm, m.name, m.group) for arm in self.arms)]


def primary_measure(
    questions: Sequence[Question], names: Sequence[str], keep_status: Collection[str] = ("finished",)
) -> str:
    """Accuracy of labels, F1 of short answers, of long ones nugget correctness when it is asked for; else F1.

    As returned where `keep_status`, that of `rewards.select`, admits answers at the end of the budget.
    """
    form = AS_RETURNED if "out_of_budget" in keep_status else ""
    if any(question.label is not None for question in questions):
        return f"accuracy{form}"
    is_long = "correctness" in names and not any(question.answers for question in questions)
    return f"{'correctness' if is_long else 'f1'}{form}"


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
    keep_status: Collection[str] = ("finished",),
    normalise: Normalise = normalise_answer,
) -> Arm:
    """Compute an arm's measures and verdicts from its trajectories and scores."""
    samples = values_of_samples(questions, trajectories, scores, names, weights, normalise)
    values, nulls = values_by_question(samples)

    def estimates(ids: Sequence[str], with_nulls: bool) -> dict[str, Estimate]:
        found = {}
        for measure in nulls:
            known = [value for i in ids if (value := values[i][measure]) is not None]
            estimate = bootstrap_interval(known, resamples, seed) if known else Estimate(mean=None, n=0)
            found[measure] = estimate.model_copy(update={"nulls": nulls[measure] if with_nulls else 0})
        return found

    kinds = {
        kind: estimates([i for i in ids if i in values], with_nulls=False) for kind, ids in _by_kind(questions).items()
    }
    measures = estimates(list(values), with_nulls=True)
    verdicts = verdicts_of(questions, trajectories)
    if verdicts is not None:
        for measure, lenient in MACRO_F1.items():
            measures[measure] = macro_f1_interval(verdicts, resamples, seed, lenient)
    return Arm(
        name=name,
        system=system,
        policy=policy,
        trajectories=len(trajectories),
        statuses=dict(Counter(trajectory.status for trajectory in trajectories)),
        measures=measures,
        kinds=kinds,
        values=values,
        answered=mean_of_answered(samples, primary_measure(questions, names, keep_status)),
        verdicts=verdicts,
    )


def _by_kind(questions: Sequence[Question]) -> dict[str, list[str]]:
    """Question ids by kind, or nothing when the questions are all of one kind."""
    kinds: dict[str, list[str]] = {}
    for question in questions:
        kinds.setdefault(question.kind or "other", []).append(question.id)
    return dict(sorted(kinds.items())) if len(kinds) > 1 else {}


def compare(base: Arm, arm: Arm, questions: Sequence[Question], primary: str, resamples: int, seed: int) -> Comparison:
    """Paired differences of `arm` against `base`, by question."""

    def difference(measure: str, ids: Sequence[str]) -> Difference:
        return measure_difference(base, arm, measure, ids, resamples, seed)

    everything, answered = [question.id for question in questions], answered_measure(primary)
    measures = {name: difference(name, everything) for name in base.measures if name in arm.measures}
    if base.verdicts is not None and arm.verdicts is not None:
        for name, lenient in MACRO_F1.items():
            measures[name] = macro_f1_difference(base.verdicts, arm.verdicts, resamples, seed, lenient)
    return Comparison(
        arm=arm.name,
        measures=measures,
        kinds={kind: difference(primary, ids) for kind, ids in _by_kind(questions).items()},
        gain=gain(base.answered, arm.answered, _by_id(base, answered), _by_id(arm, answered), resamples, seed),
        changes=question_changes(_by_id(base, primary), _by_id(arm, primary)),
    )


def _by_id(arm: Arm, measure: str) -> dict[str, float | None]:
    """A measure by question id."""
    return {i: values.get(measure) for i, values in arm.values.items()}


def measure_difference(base: Arm, arm: Arm, measure: str, ids: Sequence[str], resamples: int, seed: int) -> Difference:
    """The difference in one measure, over the given questions on which both arms have a value."""
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
    return paired_difference([pair[0] for pair in pairs], [pair[1] for pair in pairs], resamples, seed)


def best_baseline(
    arms: Sequence[Arm],
    primary: str,
    resamples: int,
    seed: int,
    without: Collection[str] = (),
    only: Collection[str] | None = None,
) -> BaselineComparison | None:
    """The trained arm against the baseline with the best mean (of equal ones, that with the fewest model calls) on the
    same questions; None without a trained arm or a baseline that can be compared with it. `without` and `only`: names
    of baselines."""
    trained = _named(arms, TRAINED)
    baselines = [arm for arm in arms if arm.name not in (*RESERVED, *without) and (only is None or arm.name in only)]
    return compare_with_best(trained, baselines, primary, resamples, seed) if trained is not None else None


def selection_gain(arms: Sequence[Arm], primary: str, resamples: int, seed: int) -> Difference | None:
    """The trained arm less that of a random selection, on the same questions; None where one of the two is missing."""
    trained, random = _named(arms, TRAINED), _named(arms, RANDOM)
    if trained is None or random is None:
        return None
    return measure_difference(random, trained, primary, list(trained.values), resamples, seed)


def in_form(arms: Sequence[Arm], primary: str, resamples: int, seed: int) -> Difference | None:
    """The gain in the primary measure where the form of both is enforced by constrained decoding, over the questions
    that both then answered; None where that was not run."""
    base, trained = _named(arms, BASE_IN_FORM), _named(arms, TRAINED_IN_FORM)
    if base is None or trained is None:
        return None
    return paired_values(base.answered, trained.answered, resamples, seed)


def _named(arms: Sequence[Arm], name: str) -> Arm | None:
    return next((arm for arm in arms if arm.name == name), None)


def compare_with_best(
    trained: Arm, baselines: Sequence[Arm], measure: str, resamples: int, seed: int
) -> BaselineComparison | None:
    """The trained arm against the best of the baselines, which is chosen on the questions that both were asked."""
    ids = list(trained.values)
    found = [(arm, measure_difference(arm, trained, measure, ids, resamples, seed)) for arm in baselines]
    found = [(arm, difference) for arm, difference in found if difference.before is not None]
    if not found:
        return None
    sign = -1 if BY_NAME[measure].better == "lower" else 1

    def rank(pair: tuple[Arm, Difference]) -> tuple[float, float]:
        calls = pair[0].measures.get("calls")
        return sign * (pair[1].before or 0.0), -(calls.mean or 0.0) if calls else 0.0

    best, difference = max(found, key=rank)
    return BaselineComparison(
        name=best.name,
        system=best.system,
        candidates=len(found),
        difference=difference,
        costs=_compare_costs(best, trained),
    )


def _compare_costs(baseline: Arm, trained: Arm) -> dict[str, CostPair]:
    """By measure of cost, the means of two arms over their questions."""
    pairs = {name: (baseline.measures.get(name), trained.measures.get(name)) for name in COSTS}
    return {
        name: CostPair(baseline=a.mean, trained=b.mean, ratio=b.mean / a.mean if a.mean else None)
        for name, (a, b) in pairs.items()
        if a is not None and b is not None and a.mean is not None and b.mean is not None
    }


def read_results(path: Path) -> Results | None:
    """The stored results, or None when there are none yet."""
    return read_record(path, Results, "rebuild it with `python -m evaluation table`")


def format_number(value: float | None, digits: int, sign: bool = False) -> str:
    """A number with this many digits, '-' for None."""
    if value is None:
        return "-"
    value = round(value, digits) + 0.0  # no minus sign on a rounded zero
    return f"{value:{'+' if sign else ''}.{digits}f}"


def format_interval(found: Estimate | Difference, digits: int) -> str:
    """'[0.310, 0.520]'; empty where there is none, or all values were equal."""
    if found.low is None or found.high is None or found.low == found.high:
        return ""
    return f"[{format_number(found.low, digits)}, {format_number(found.high, digits)}]"


def format_mean(found: Estimate | None, name: str) -> str:
    """The mean with the measure's digits, '-' where there is none."""
    return format_number(found.mean if found else None, BY_NAME[name].digits)


def format_estimate(found: Estimate | None, name: str) -> str:
    """'0.412 [0.310, 0.520]' as rich markup, '-' where there is no value."""
    if found is None or found.mean is None:
        return "-"
    digits = BY_NAME[name].digits
    between = format_interval(found, digits)
    return format_number(found.mean, digits) + (f" [dim]{escape(between)}[/dim]" if between else "")


def format_difference(found: Difference | None, name: str) -> str:
    """'+0.33 [0.24, 0.42]', green where clearly better and red where clearly worse."""
    if found is None or found.mean is None:
        return "-"
    digits = BY_NAME[name].digits
    text = f"{format_number(found.mean, digits, sign=True)} {escape(format_interval(found, digits))}".rstrip()
    better = BY_NAME[name].better
    if not found.clear or not better:
        return text
    return f"[{'green' if (found.mean > 0) == (better == 'higher') else 'red'}]{text}[/]"


def format_p_value(found: Difference | None) -> str:
    """The p value of a difference, '-' where there is none."""
    return "-" if found is None or found.p is None else format_p(found.p)


def format_p(p: float) -> str:
    """A p value with three digits, '<0.001' below that."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"
