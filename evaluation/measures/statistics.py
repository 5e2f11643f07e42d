"""Intervals and tests over questions. A question is the unit: its samples are averaged before anything here sees it.

Everything is seeded and vectorised, and works in blocks so that many questions and many resamples fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.measures.estimates import Difference, Estimate

K = TypeVar("K", bound=Hashable)
BLOCK = 2_000_000
"""Random draws held at once (16 MB of indices)."""

Rows = NDArray[np.float64]
"""Float64 [questions, sums]: the part of each question in some sums."""
RESAMPLES = 10_000
"""The number of resamples of a 95% interval, and of the questions' signs in a test."""
Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Computes a statistic that is no mean over questions: from rows of such sums one number per row, NaN if undefined."""


def bootstrap_interval(values: Sequence[float], seed: int, resamples: int = RESAMPLES) -> Estimate:
    """Percentile bootstrap interval of the mean.

    Questions are drawn with replacement, and the interval runs between the quantiles of the resampled means
    (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). It undercovers a little on few
    questions; with one question there is no interval, and without any no mean.

    Raises ValueError for values that are not finite.
    """
    if not len(values):
        return Estimate(mean=None, n=0)
    array = _finite(values)
    if len(array) > 1 and np.ptp(array) == 0:  # the means of equal values differ by rounding
        mean = float(array.mean())
        return Estimate(mean=mean, low=mean, high=mean, n=len(array))
    return stratified_interval([values], seed, resamples)


def stratified_interval(groups: Sequence[Sequence[float]], seed: int, resamples: int = RESAMPLES) -> Estimate:
    """The mean of the groups' means, each group weighing alike, and its percentile bootstrap interval.

    Questions are drawn with replacement within their group (a benchmark), since the benchmarks themselves are chosen
    and not drawn. Raises ValueError for no groups, an empty one, or values that are not finite.
    """
    if not groups:
        raise ValueError("no groups")
    return _stratified(tuple(_finite(group).tobytes() for group in groups), seed, resamples)


# The forms of a measure (strict, lenient, as returned) mostly have the same values, and so have several measures.
@lru_cache(maxsize=256)
def _stratified(groups: tuple[bytes, ...], seed: int, resamples: int) -> Estimate:
    arrays = [np.frombuffer(group, np.float64) for group in groups]
    mean, n = float(np.mean([array.mean() for array in arrays])), sum(map(len, arrays))
    if max(map(len, arrays)) == 1:
        return Estimate(mean=mean, n=n)
    rng = np.random.default_rng(seed)
    means = np.zeros(resamples)
    for array in arrays:
        step = max(1, BLOCK // len(array))
        for at in range(0, resamples, step):
            rows = min(step, resamples - at)
            drawn = array[rng.integers(len(array), size=(rows, len(array)))].mean(axis=1)
            means[at : at + rows] += drawn / len(arrays)
    return _interval(mean, n, means)


def sign_flip_p(differences: Sequence[float], seed: int, resamples: int = RESAMPLES) -> float:
    """Two-sided p value of the paired permutation test of a mean difference of zero.

    Where neither system is better, swapping the two results of a question (flipping the sign of its difference)
    changes nothing; p is the share of flips whose mean is at least as far from zero as the one seen (Fisher, The
    Design of Experiments, 1935; for language systems Dror and others, ACL 2018). All flips are counted when there are
    at most `resamples` of them; otherwise they are drawn at random and the seen one is counted in, so that p is
    never 0 (Phipson and Smyth, 2010).
    """
    array = _finite(differences)
    seen = abs(float(array.sum()))
    slack = 1e-9 * max(1.0, float(np.abs(array).sum()))  # equal sums differ by rounding
    moving = array[array != 0]  # a question without a difference is the same flipped
    if len(moving) == 0:
        return 1.0
    if len(moving) < 60 and 2 ** len(moving) <= resamples:
        bits = (np.arange(2 ** len(moving))[:, None] >> np.arange(len(moving))) & 1
        return float(np.mean(np.abs((1 - 2 * bits) @ moving) >= seen - slack))
    rng = np.random.default_rng(seed)
    step = max(1, BLOCK // len(moving))
    extreme = 0
    for at in range(0, resamples, step):
        signs = 1 - 2 * rng.integers(2, size=(min(step, resamples - at), len(moving)), dtype=np.int8)
        extreme += int(np.count_nonzero(np.abs(signs @ moving) >= seen - slack))
    return (extreme + 1) / (resamples + 1)


def paired(before: Mapping[K, float | None], after: Mapping[K, float | None]) -> tuple[list[float], list[float]]:
    """The values of two systems, by question, on the questions on which both have one, in the order of the first."""
    known = [(x, y) for key, x in before.items() if x is not None and (y := after.get(key)) is not None]
    return [x for x, _ in known], [y for _, y in known]


def paired_difference(before: Sequence[float], after: Sequence[float], seed: int) -> Difference:
    """The mean difference of two systems on the same questions, its percentile bootstrap interval over questions
    (pairs are drawn together: Koehn, EMNLP 2004) and its sign-flip p value.

    `before[i]` and `after[i]` belong to the same question. Raises ValueError for unequal lengths.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} values before, {len(after)} after: they must be pairs")
    if not len(before):
        return Difference(n=0)
    first, second = _finite(before), _finite(after)
    differences = (second - first).tolist()
    interval = bootstrap_interval(differences, seed)
    p = sign_flip_p(differences, seed)
    return _difference(float(first.mean()), float(second.mean()), interval, p, int(np.count_nonzero(second != first)))


def statistic_interval(rows: Rows, statistic: Statistic, seed: int) -> Estimate:
    """A statistic of sums over questions (macro-F1, a ratio) and its percentile bootstrap interval; its mean is None
    where it is undefined. A resample in which it is undefined is skipped."""
    return averaged_interval([(rows, statistic)], seed)


def averaged_interval(groups: Sequence[tuple[Rows, Statistic]], seed: int) -> Estimate:
    """The mean of a statistic over question sets, each weighing alike; questions are drawn within their set."""
    if not groups or not all(len(rows) for rows, _ in groups):
        return Estimate(mean=None, n=0)
    mean = float(np.mean([_at(rows, statistic) for rows, statistic in groups]))
    n = sum(len(rows) for rows, _ in groups)
    if np.isnan(mean):
        return Estimate(mean=None, n=0)
    if max(len(rows) for rows, _ in groups) == 1:
        return Estimate(mean=mean, n=n)
    rng = np.random.default_rng(seed)
    means = np.mean([_resampled(rows, statistic, rng) for rows, statistic in groups], axis=0)
    return _interval(mean, n, means[~np.isnan(means)])


def _interval(mean: float, n: int, resampled: NDArray[np.float64]) -> Estimate:
    """The 95% percentile interval of the resamples; without one where there are none."""
    if not len(resampled):
        return Estimate(mean=mean, n=n)
    low, high = np.quantile(resampled, [(1 - 0.95) / 2, (1 + 0.95) / 2])
    return Estimate(mean=mean, low=float(low), high=float(high), n=n)


def _at(rows: Rows, statistic: Statistic) -> float:
    return float(statistic(rows.sum(axis=0, keepdims=True))[0])


def _resampled(rows: Rows, statistic: Statistic, rng: np.random.Generator) -> NDArray[np.float64]:
    """The statistic of each bootstrap resample."""
    n, values = len(rows), np.empty(RESAMPLES)
    step = max(1, BLOCK // n)
    for at in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - at)
        drawn = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
        values[at : at + size] = statistic(times @ rows)
    return values


def paired_statistic(before: Rows, after: Rows, statistic: Statistic, seed: int) -> Difference:
    """As `paired_difference`, of a statistic of sums: row i of both belongs to the same question."""
    width = before.shape[1]
    interval = statistic_interval(
        np.hstack([before, after]),
        lambda sums: statistic(sums[:, width:]) - statistic(sums[:, :width]),
        seed,
    )
    if interval.mean is None:
        return Difference(n=0)
    p = _swap_p(before, after, statistic, seed)
    changed = int(np.count_nonzero((before != after).any(axis=1)))
    return _difference(_at(before, statistic), _at(after, statistic), interval, p, changed)


def _difference(before: float, after: float, gain: Estimate, p: float, changed: int) -> Difference:
    return Difference(
        before=before, after=after, mean=gain.mean, low=gain.low, high=gain.high, p=p, n=gain.n, changed=changed
    )


def _swap_p(before: Rows, after: Rows, statistic: Statistic, seed: int) -> float:
    """Two-sided p value of the randomisation test of no difference: the two results of a question are swapped at
    random (Noreen 1989; for F1 Yeh, COLING 2000). The difference seen is counted in, so that p is never 0."""
    change = after - before
    change = change[(change != 0).any(axis=1)]
    if not len(change):
        return 1.0
    first, second = before.sum(axis=0), after.sum(axis=0)
    seen = abs(_at(after, statistic) - _at(before, statistic))
    rng = np.random.default_rng(seed)
    step, extreme = max(1, BLOCK // len(change)), 0
    for at in range(0, RESAMPLES, step):
        moved = rng.integers(2, size=(min(step, RESAMPLES - at), len(change)), dtype=np.int8) @ change
        moves = np.abs(statistic(second - moved) - statistic(first + moved))
        extreme += int(np.count_nonzero(moves >= seen - 1e-9))  # equal differences differ by rounding
    return (extreme + 1) / (RESAMPLES + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values of several tests, in their order, adjusted so that the chance of any false alarm among them stays
    at the level (Holm, Scandinavian Journal of Statistics, 1979): each times the number of tests that are not yet
    decided, going up from the smallest, and never below the one before. Pass all tests that one table was meant
    to show; skip nulls, which are no tests.

    Raises ValueError for a value that is no probability.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError("p values lie from 0 to 1: leave nulls out and count them")
    adjusted = [0.0] * len(p_values)
    floor = 0.0
    for decided, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        floor = max(floor, min(1.0, (len(p_values) - decided) * p_values[at]))
        adjusted[at] = floor
    return adjusted


def holm_by(differences: Mapping[K, Difference]) -> dict[K, float]:
    """Holm's p values of all differences that have one, as the tests of one table."""
    known = {key: difference.p for key, difference in differences.items() if difference.p is not None}
    return dict(zip(known, holm(list(known.values())), strict=True))


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array):
        raise ValueError("no values")
    if not np.isfinite(array).all():
        raise ValueError("values must be finite: leave nulls out and count them")
    return array
