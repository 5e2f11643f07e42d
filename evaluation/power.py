"""How many questions a gain needs to be detected, for the paired tests of `evaluation.measures.statistics`.

By the normal approximation for a paired mean: with differences that spread by `sd` over questions, n questions show a
mean gain g at two-sided level alpha with probability POWER when g = (z(1 - alpha / 2) + z(POWER)) * sd / sqrt(n)
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

POWER = 0.8


def questions_needed(sd: float, gain: float, alpha: float) -> int:
    """The fewest questions on which a mean paired difference of `gain` is found with probability POWER."""
    return max(2, ceil((_distance(alpha) * sd / gain) ** 2))


def smallest_gain(sd: float, n: int, alpha: float) -> float:
    """The mean paired difference that `n` questions show with probability POWER."""
    return _distance(alpha) * sd / sqrt(n)


def paired_differences(base: Arm, arm: Arm, measure: str) -> list[float]:
    """arm - base, by question, over the questions on which both have a value."""
    return [
        after - before
        for question, values in base.values.items()
        if (before := values.get(measure)) is not None
        and (after := arm.values.get(question, {}).get(measure)) is not None
    ]


def _distance(alpha: float) -> float:
    """Standard errors from zero to a gain that is found with probability POWER."""
    return NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(POWER)
