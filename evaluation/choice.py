"""The choice between arms: checkpoints of a training or of a sweep, and a round's adapter and its parent."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Generic, TypeVar

from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.measures.measures import direction, measure_of

K = TypeVar("K", bound=Hashable)
MIN_GAIN, POWER = 0.05, 0.8
"""The gain that dev should be large enough to show, and with which probability."""


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
