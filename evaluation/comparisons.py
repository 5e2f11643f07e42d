"""Arms measured, compared and chosen between: means with intervals, differences paired by question, the best baseline,
the best checkpoint, and a round's adapter or its parent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Generic, TypeVar

from ratchet.core.config import Config
from ratchet.core.records import Question, Trajectory
from ratchet.core.text import NORMALISATIONS
from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.measures import (
    AS_RETURNED,
    MATCHES,
    Scores,
    answered_measure,
    direction,
    mean_of_answered,
    measure_of,
    values_by_question,
    values_of_samples,
)
from ratchet.evaluation.measures.statistics import bootstrap_interval, paired, paired_difference
from ratchet.evaluation.measures.verdicts import MACRO_F1, average_macro_f1, macro_f1_difference, verdicts_of
from ratchet.evaluation.results import (
    RANDOM,
    RESERVED,
    TRAINED,
    Arm,
    BaselineComparison,
    Comparison,
    CostPair,
    Gain,
    LabelFloor,
    QuestionChanges,
)
from ratchet.rewards.reward import load_reward
from ratchet.rewards.rules import references

K = TypeVar("K", bound=Hashable)
COSTS = ("calls", "prompt_tokens", "new_tokens")
CHANGE = 0.5
"""A question is gained or broken where its value changes by this much: a wrong label or exact match became right, or
the reverse. With several samples the value is their mean."""
ROUNDING = 1e-9
"""Means over samples differ from CHANGE by less than this only by rounding."""
MIN_GAIN, POWER = 0.05, 0.8
"""The gain that dev should be large enough to show, and with which probability."""


def primary_measure(config: Config, questions: Sequence[Question]) -> str:
    """Accuracy of labels, F1 of short answers, of long ones nugget correctness when it is asked for; without any answer
    the gold documents retrieved, or else the first score that is asked for; else F1.

    As returned where `rewards.select.keep_status` admits answers at the end of the budget.
    """
    form = AS_RETURNED if "out_of_budget" in config.rewards.select.keep_status else ""
    if any(question.label is not None for question in questions):
        return f"accuracy{form}"
    if not any(references(question) or question.nuggets for question in questions):
        if any(question.gold_ids or question.gold_titles for question in questions):
            return "gold_recall"
        rewards = {name: load_reward(name) for name in config.evaluation.scores if name not in MATCHES}
        own = (
            name
            for name, reward in rewards.items()
            if not reward.is_cost and not all(map(reward.why_unscorable, questions))
        )
        return f"{next(own, 'f1')}{form}"
    is_long = "correctness" in config.evaluation.scores and not any(question.answers for question in questions)
    return f"{'correctness' if is_long else 'f1'}{form}"


def make_arm(
    config: Config,
    name: str,
    system: str,
    policy: str,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    scores: Scores,
) -> Arm:
    """Compute an arm's measures and verdicts, under this name, from its trajectories and scores."""
    rewards, names, seed = config.rewards, config.evaluation.scores, config.seed
    normalise = NORMALISATIONS[rewards.normalisation]
    samples = values_of_samples(questions, trajectories, scores, names, rewards.weights, normalise)
    values, nulls = values_by_question(samples)

    def estimates(ids: Sequence[str], with_nulls: bool) -> dict[str, Estimate]:
        by_measure = {}
        for measure in nulls:
            known = [value for i in ids if (value := values[i][measure]) is not None]
            counted = {"nulls": nulls[measure] if with_nulls else 0}
            by_measure[measure] = bootstrap_interval(known, seed).model_copy(update=counted)
        return by_measure

    kinds = {
        kind: estimates([i for i in ids if i in values], with_nulls=False) for kind, ids in _by_kind(questions).items()
    }
    measures = estimates(list(values), with_nulls=True)
    verdicts = verdicts_of(questions, trajectories)
    if verdicts is not None:
        measures |= {measure: average_macro_f1([verdicts], seed, measure) for measure in MACRO_F1}
    return Arm(
        name=name,
        system=system,
        policy=policy,
        trajectories=len(trajectories),
        statuses=dict(Counter(trajectory.status for trajectory in trajectories)),
        measures=measures,
        kinds=kinds,
        values=values,
        answered=mean_of_answered(samples, primary_measure(config, questions)),
        verdicts=verdicts,
    )


def _by_kind(questions: Sequence[Question]) -> dict[str, list[str]]:
    """Question ids by kind, or nothing when the questions are all of one kind."""
    kinds: dict[str, list[str]] = {}
    for question in questions:
        kinds.setdefault(question.kind or "other", []).append(question.id)
    return dict(sorted(kinds.items())) if len(kinds) > 1 else {}


def compare(
    base: Arm,
    arm: Arm,
    questions: Sequence[Question],
    primary: str,
    seed: int,
) -> Comparison:
    """Paired differences of `arm` against `base`, by question."""
    answered, own = answered_measure(primary), (primary, seed)
    measures = {name: measure_difference(base, arm, name, seed) for name in base.measures if name in arm.measures}
    if base.verdicts is not None and arm.verdicts is not None:
        both = base.verdicts, arm.verdicts
        measures |= {name: macro_f1_difference(*both, seed, name) for name in MACRO_F1}
    return Comparison(
        arm=arm.name,
        measures=measures,
        kinds={kind: measure_difference(base, arm, *own, ids) for kind, ids in _by_kind(questions).items()},
        gain=Gain(
            form=measure_difference(base, arm, answered, seed),
            substance=paired_difference(*paired(base.answered, arm.answered), seed),
        ),
        changes=question_changes(base.by_question(primary), arm.by_question(primary)),
    )


def question_changes(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> QuestionChanges:
    """The questions gained and broken, from values of the primary measure by question id, where higher is better."""
    changes = [y - x for x, y in zip(*paired(before, after), strict=True)]
    return QuestionChanges(
        gained=sum(change >= CHANGE - ROUNDING for change in changes),
        broken=sum(change <= ROUNDING - CHANGE for change in changes),
        questions=len(changes),
    )


def label_floor(questions: Sequence[Question]) -> LabelFloor | None:
    """The floor of the questions that have a label; None where none has."""
    labelled = [question for question in questions if question.label is not None and question.labels]
    if not labelled:
        return None
    names = {label.name.casefold(): label.name for question in labelled for label in question.labels}
    counts = Counter((question.label or "").casefold() for question in labelled)
    commonest = min(counts, key=lambda label: (-counts[label], label))
    return LabelFloor(
        chance=fmean(1 / len(question.labels) for question in labelled),
        commonest=names.get(commonest, commonest),
        accuracy=counts[commonest] / len(labelled),
    )


def measure_difference(base: Arm, arm: Arm, measure: str, seed: int, ids: Collection[str] | None = None) -> Difference:
    """The difference in one measure, over the questions on which both arms have a value. `ids`: of these alone."""
    before = {i: value for i, value in base.by_question(measure).items() if ids is None or i in ids}
    return paired_difference(*paired(before, arm.by_question(measure)), seed)


def best_baseline(
    arms: Sequence[Arm],
    primary: str,
    seed: int,
    without: Collection[str] = (),
    only: Collection[str] | None = None,
) -> BaselineComparison | None:
    """The trained arm against the baseline with the best mean (of equal ones, that with the fewest model calls) on the
    same questions; None without a trained arm or a baseline that can be compared with it. `without` and `only`: names
    of baselines."""
    trained = _named(arms, TRAINED)
    baselines = [arm for arm in arms if arm.name not in (*RESERVED, *without) and (only is None or arm.name in only)]
    return compare_with_best(trained, baselines, primary, seed) if trained is not None else None


def selection_gain(arms: Sequence[Arm], primary: str, seed: int) -> Difference | None:
    """The trained arm less that of a random selection, on the same questions; None where one of the two is missing."""
    trained, random = _named(arms, TRAINED), _named(arms, RANDOM)
    if trained is None or random is None:
        return None
    return measure_difference(random, trained, primary, seed)


def _named(arms: Sequence[Arm], name: str) -> Arm | None:
    return next((arm for arm in arms if arm.name == name), None)


def compare_with_best(trained: Arm, baselines: Sequence[Arm], measure: str, seed: int) -> BaselineComparison | None:
    """The trained arm against the best of the baselines, which is chosen on the questions that both were asked."""
    differences = [(arm, measure_difference(arm, trained, measure, seed)) for arm in baselines]
    candidates = [(arm, difference) for arm, difference in differences if difference.before is not None]
    if not candidates:
        return None
    sign = -1 if measure_of(measure).better == "lower" else 1

    def rank(pair: tuple[Arm, Difference]) -> tuple[float, float]:
        calls = pair[0].measures.get("calls")
        return sign * (pair[1].before or 0.0), -(calls.mean or 0.0) if calls else 0.0

    best, difference = max(candidates, key=rank)
    return BaselineComparison(
        name=best.name,
        system=best.system,
        candidates=len(candidates),
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


# Choosing


@dataclass(frozen=True)
class Choice(Generic[K]):
    """The best of several arms."""

    best: K
    means: Mapping[K, float]
    """By arm, the best first: the mean over the question sets."""
    questions: int
    """The number of questions whose values were compared."""


def choose(arms: Mapping[K, Sequence[Mapping[str, float]]], lower_is_better: bool = False) -> Choice[K] | None:
    """The arm with the best mean over its question sets; of equal ones the first. `arms`: for each, a mapping for every
    set, from question to value.

    Only the questions count that every arm has: other questions would give means that cannot be compared. None where a
    set has no such question.
    """
    shared = [set.intersection(*map(set, of_set)) for of_set in zip(*arms.values(), strict=True)]
    if not all(shared):
        return None
    means = {
        arm: fmean(fmean(values[i] for i in known) for values, known in zip(sets, shared, strict=True))
        for arm, sets in arms.items()
    }
    sign = 1 if lower_is_better else -1
    order = sorted(means, key=lambda arm: sign * round(means[arm], 12))  # stable: ties stay in the order of the arms
    return Choice(order[0], {arm: means[arm] for arm in order}, sum(map(len, shared)))


def decide(difference: Difference, level: float, measure: str) -> tuple[bool, str]:
    """(promoted, the reason in a sentence) for a candidate's paired difference to its parent."""
    title = measure_of(measure).short
    if difference.mean is None or difference.p is None or difference.before is None or difference.after is None:
        return False, f"Not promoted: no question of dev has a value of {title} from both."
    numbers = (
        f"{title} {difference.before:.3f} -> {difference.after:.3f}: {difference.mean:+.3f}, p = {difference.p:.3g} on "
        f"{difference.n} questions of dev"
    )
    if difference.mean <= 0:
        return False, f"Not promoted, since it is not better than its parent: {numbers}."
    if direction(difference, measure, level) != "better":
        why = f"p is not below {level:g}" if difference.p >= level else "the 95% interval holds 0"
        return False, f"Not promoted, since chance may explain the gain ({why}): {numbers}."
    return True, f"Promoted: {numbers}."


def too_few_questions(differences: Sequence[float], level: float) -> str:
    """A sentence where the questions with these paired differences are too few to show MIN_GAIN at this level; else
    empty, as where their spread is not known.

    By the normal approximation, n questions whose differences spread by sd show a mean gain g with probability POWER
    when g = (z(1 - level / 2) + z(POWER)) * sd / sqrt(n) (Cohen, Statistical Power Analysis, 1988; for language
    systems Card and others, EMNLP 2020). Under about 30 questions the plan is optimistically biased.
    """
    n, normal = len(differences), NormalDist()
    spread = (normal.inv_cdf(1 - level / 2) + normal.inv_cdf(POWER)) * (stdev(differences) if n > 1 else 0.0)
    needed = max(2, ceil((spread / MIN_GAIN) ** 2)) if spread else 0
    if needed <= n:
        return ""
    shown = spread / sqrt(n)
    return (
        f"dev is too small to show a gain of {MIN_GAIN:g}: its {n} questions show one of "
        f"{shown:.2f} or more, and it takes {needed:,} (questions.dev)"
    )
