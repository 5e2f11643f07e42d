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
from itertools import groupby
from statistics import fmean

from ratchet.core.config import SelectConfig
from ratchet.core.records import Question, Score
from ratchet.rewards.reward import has_answer
from ratchet.rewards.selection import ALONE, TIE, Scores, Weights, num_runs, strict_reward, worst_reward
from ratchet.sampling.store import Outline

Z = 2.5
"""Standard errors on each side of a mean. `benchmarks.judge_calls` prints what others cost and keep."""

Interval = tuple[float, float]


def undecided(
    question: Question, sampled: Sequence[Outline], scores: Scores, weights: Weights, rule: SelectConfig, max_runs: int
) -> dict[str, int]:
    """By trajectory of a question that needs one more judge run, the number of its runs with that one."""
    more: set[str] = set()
    for learners, group in groupby(sorted(sampled, key=lambda one: one.learners), key=lambda one: one.learners):
        own = rule.model_copy(update=ALONE) if learners else rule
        more |= _undecided(question, list(group), scores, weights, own, max_runs)
    known = {key: num_runs(key, scores, weights) for key in more}
    return {key: runs + 1 for key, runs in known.items() if runs < max_runs}


def intervals(values: Mapping[str, Sequence[float]], max_runs: int, lowest: float) -> dict[str, Interval]:
    """By trajectory, where the mean of its values will be once there are `max_runs` of them, each from `lowest` to 1. A
    trajectory with one value that no run changes has it as a list of `max_runs` equal ones."""
    squares = {key: sum((value - fmean(own)) ** 2 for value in own) for key, own in values.items()}
    free = {key: len(own) - 1 for key, own in values.items() if 1 < len(own) < max_runs}
    pooled = sum(squares[key] for key in free) / max(1, sum(free.values()))
    found = {}
    for key, own in values.items():
        mean, known = fmean(own), len(own)
        variance = max(pooled, squares[key] / free[key]) if key in free else pooled
        half = Z * math.sqrt(variance * max(0.0, 1 / known - 1 / max_runs))
        left = max_runs - known
        found[key] = (
            max(mean - half, (known * mean + left * lowest) / max_runs),
            min(mean + half, (known * mean + left) / max_runs),
        )
    return found


def _undecided(
    question: Question, sampled: Sequence[Outline], scores: Scores, weights: Weights, rule: SelectConfig, max_runs: int
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
    lowest = worst_reward(weights)
    # A run that cannot be read may be read the next time, and then has any value.
    unread = {one.key for one in candidates if any(None in score.runs for score in own[one.key])}
    rewards = {
        one.key: run_rewards(question, one, scores, weights, rule, max_runs)
        for one in candidates
        if one.key not in unread
    }
    bounds = intervals(rewards, max_runs, lowest) | dict.fromkeys(unread, (lowest, 1.0))
    if not bounds:
        return set()
    best = max(low for low, _ in bounds.values())
    contenders = {key for key, (_, high) in bounds.items() if high >= best - TIE}
    equal = {
        tuple(scores[key, name].equal_to or key for name in needed if scores[key, name].runs) for key in contenders
    }
    more = contenders if len(equal) > 1 else set()
    if rule.min_reward is not None:
        more = more | _straddling(bounds, rule.min_reward)
    for name, least in rule.min_scores.items():
        given = {key: scores[key, name].runs or (scores[key, name].value,) * max_runs for key in rewards}
        known = {key: [value for value in values if value is not None] for key, values in given.items()}
        more = more | _straddling(intervals(known, max_runs, 0.0), least)
    return more


def _straddling(bounds: Mapping[str, Interval], threshold: float) -> set[str]:
    """Those that may be above the threshold, where it is not sure that one is."""
    if any(low > threshold + TIE for low, _ in bounds.values()):
        return set()
    return {key for key, (_, high) in bounds.items() if high > threshold + TIE}


def run_rewards(
    question: Question, outline: Outline, scores: Scores, weights: Weights, rule: SelectConfig, max_runs: int
) -> list[float]:
    """The reward by each judge run alone, as a list of `max_runs` equal ones where no judge gave any of it."""
    own: dict[tuple[str, str], Score] = {at: scores[at] for name in weights if (at := (outline.key, name)) in scores}
    known = num_runs(outline.key, scores, weights)
    values = []
    for run in range(known or 1):
        of_run = {
            at: score.model_copy(update={"value": score.runs[run]}) if run < len(score.runs) else score
            for at, score in own.items()
        }
        values.append(strict_reward(question, outline, of_run, weights, rule.keep_status))
    given = [value for value in values if value is not None]
    return given if known else given * max_runs
