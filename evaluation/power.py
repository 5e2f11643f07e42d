"""How many questions a gain needs to be detected, for the paired tests of `evaluation.measures.statistics`.

By the normal approximation for a paired mean: with differences that spread by `sd` over questions, n questions show a
mean gain g at two-sided level alpha with probability `power` when g = (z(1 - alpha / 2) + z(power)) * sd / sqrt(n)
(Cohen, Statistical Power Analysis, 1988; for language systems Card and others, EMNLP 2020). `sd` is that of the
observed paired differences, each a question's mean over its samples, so a question counts once here too.

It is a plan, not a result: under about 30 questions it is optimistically biased, and systems that differ on more
questions than the measured ones have a larger spread. Power at the observed gain adds nothing to its p value; ask about
gains that would matter.
"""

from __future__ import annotations

from math import ceil, sqrt
from statistics import NormalDist

from evaluation.results import Arm


def questions_needed(sd: float, gain: float, power: float = 0.8, alpha: float = 0.05) -> int:
    """The fewest questions on which a mean paired difference of `gain` is found with probability `power`."""
    _check(sd, power, alpha)
    if gain <= 0:
        raise ValueError(f"gain is {gain}: give the size of a difference, above 0")
    return max(2, ceil((_distance(power, alpha) * sd / gain) ** 2))


def smallest_gain(sd: float, n: int, power: float = 0.8, alpha: float = 0.05) -> float:
    """The mean paired difference that `n` questions show with probability `power`."""
    _check(sd, power, alpha)
    if n < 2:
        raise ValueError(f"n is {n}: one question shows no gain")
    return _distance(power, alpha) * sd / sqrt(n)


def paired_differences(base: Arm, arm: Arm, measure: str) -> list[float]:
    """arm - base, by question, over the questions on which both have a value."""
    return [
        after - before
        for question, values in base.values.items()
        if (before := values.get(measure)) is not None
        and (after := arm.values.get(question, {}).get(measure)) is not None
    ]


def _distance(power: float, alpha: float) -> float:
    """Standard errors from zero to a gain that is found with that probability."""
    return NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(power)


def _check(sd: float, power: float, alpha: float) -> None:
    if not sd > 0:
        raise ValueError(f"sd is {sd}: differences without any spread give no plan")
    if not (0 < alpha < 1 and alpha / 2 < power < 1):
        raise ValueError(f"power {power} and alpha {alpha} are probabilities, and power is above alpha / 2")
