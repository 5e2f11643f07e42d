"""Which trajectories of a question get further judge runs, where `rewards.runs` lets their number differ.

Every trajectory has `least` runs. A further one goes to those whose reward, with `most` runs, could still change which
trajectories are kept: to contenders for the best reward, unless all of them are equal answers, and to those that decide
whether the question is dropped. Where a mean of k runs will be with `most` runs, an interval tells, as successive
elimination has it for the best arm (Even-Dar et al. 2006, Journal of Machine Learning Research 7), here for a mean over
a finite number of runs, of which k are known: its standard error is the runs' spread times sqrt(1/k - 1/most), and it
lies between what the other runs can give at least and at most. Two runs say little about a spread, so that of a
trajectory is the greater one of its own and of that of all of the question, pooled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from ratchet.core.config import SelectConfig
from ratchet.rewards.reward import has_answer
from ratchet.rewards.selection import TIE, Scores, Weights, num_runs, reward, worst_reward
from ratchet.sampling.store import Outline

Z = 2.5
"""Standard errors on each side of a mean. `benchmarks.judge_calls --errors` tries others."""

Interval = tuple[float, float]
Values = Mapping[str, Sequence[float | None]]
"""By trajectory, a value of each run; None where the run cannot be read. One that no run changes has `max_runs` equal
values."""


def undecided(
    sampled: Sequence[Outline], scores: Scores, weights: Weights, rule: SelectConfig, max_runs: int
) -> dict[str, int]:
    """By trajectory of a question that needs one more judge run, the number of its runs with that one."""
    more: set[str] = set()
    for learners in {one.learners for one in sampled}:  # they are selected apart
        more |= _undecided([one for one in sampled if one.learners == learners], scores, weights, rule, max_runs)
    names = [name for name, weight in weights.items() if weight or name in rule.min_scores]
    known = {key: num_runs(key, scores, names) for key in more}
    return {key: runs + 1 for key, runs in known.items() if 0 < runs < max_runs}


def intervals(values: Values, max_runs: int, lowest: float) -> dict[str, Interval]:
    """By trajectory, where the mean of its values will be once there are `max_runs` of them, each from `lowest` to 1.
    One that has them all and no readable one has no interval."""
    read = {key: [value for value in own if value is not None] for key, own in values.items()}
    squares = {key: sum((value - fmean(own)) ** 2 for value in own) for key, own in read.items() if own}
    free = {key: len(own) - 1 for key, own in values.items() if len(read[key]) == len(own) and 1 < len(own) < max_runs}
    pooled = sum(squares[key] for key in free) / max(1, sum(free.values()))
    found = {}
    for key, own in read.items():
        known = len(values[key])
        left = max_runs - known
        if len(own) < known and left:
            found[key] = lowest, 1.0
        elif own:
            mean = fmean(own)
            variance = max(pooled, squares[key] / free[key]) if key in free else pooled
            half = Z * math.sqrt(variance * max(0.0, 1 / known - 1 / max_runs))
            least, greatest = ((known * mean + left * value) / max_runs for value in (lowest, 1.0))
            found[key] = max(mean - half, least), min(mean + half, greatest)
    return found


def _undecided(
    sampled: Sequence[Outline], scores: Scores, weights: Weights, rule: SelectConfig, max_runs: int
) -> set[str]:
    needed = [name for name, weight in weights.items() if weight]
    own = {one.key: [scores[one.key, name] for name in needed] for one in sampled}
    candidates = [
        one
        for one in sampled
        if one.status in rule.keep_status
        and has_answer(one)
        and all(score.runs or score.value is not None for score in own[one.key])
    ]
    if any(score.roles for one in candidates for score in own[one.key]):
        return {one.key for one in candidates}  # roles learn by values of their own, which runs do not have
    rewards = {one.key: run_rewards(one, scores, weights, max_runs) for one in candidates}
    bounds = intervals(rewards, max_runs, worst_reward(weights))
    if not bounds:
        return set()
    best = max(low for low, _ in bounds.values())
    contenders = {key for key, (_, high) in bounds.items() if high >= best - TIE}
    equal = {tuple(score.equal_to or key for score in own[key] if score.runs) for key in contenders}
    more = contenders if len(equal) > 1 else set()
    if rule.min_reward is not None:
        more = more | _straddling(bounds, rule.min_reward)
    for name, least in rule.min_scores.items():
        given = {key: scores[key, name].runs or (scores[key, name].value,) * max_runs for key in rewards}
        more = more | _straddling(intervals(given, max_runs, 0.0), least)
    return more


def _straddling(bounds: Mapping[str, Interval], threshold: float) -> set[str]:
    """Those that may be above the threshold, where it is not sure that one is."""
    if any(low > threshold + TIE for low, _ in bounds.values()):
        return set()
    return {key for key, (_, high) in bounds.items() if high > threshold + TIE}


def run_rewards(outline: Outline, scores: Scores, weights: Weights, max_runs: int) -> list[float | None]:
    """The reward by each judge run alone. A score with more runs than another one, as those of equal answers may have,
    has its mean in each."""
    needed = [name for name, weight in weights.items() if weight]
    known = num_runs(outline.key, scores, needed)
    own = {name: scores[outline.key, name] for name in needed}

    def value(name: str, run: int) -> float | None:
        return own[name].runs[run] if known and len(own[name].runs) == known else own[name].value

    values = [
        reward(
            outline,
            {(outline.key, name): own[name].model_copy(update={"value": value(name, run)}) for name in own},
            weights,
        )
        for run in range(known or 1)
    ]
    return values if known else values * max_runs
