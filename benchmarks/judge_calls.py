"""Judge calls a trajectory against the questions that keep the same trajectories: lists, equal answers, fewer runs.

    python -m benchmarks.judge_calls                three minutes
    python -m benchmarks.judge_calls --write        and writes the table into docs/guides/large-runs.md

No judge is asked. Verdicts of five runs are drawn for every nugget and claim of eight answers to a question, as the
rewards of mRAG's paper have them, and `rewards.runs.undecided` is given as many of them as it asks for. What is kept
is compared with what all five runs of the same verdicts keep. A list of nuggets and equal answers are taken to get the
verdicts that single calls get, so that they change the calls alone: whether a judge does so, `ratchet score whatif`
shows on real answers.

A verdict is the answer's own with a probability, and else drawn like any other verdict, so that two runs agree beyond
chance by a reliability, which is assumed. No published one is of these verdicts: test-retest reliability is above 0.95
for the best of 21 judges in pairwise comparisons (Norman et al. 2026, arXiv 2606.19544); 44.7% of the variance of
pointwise scores is between runs with GPT-4o mini and GPT-4.1 mini (Yagubyan 2026, arXiv 2606.13685), hence 0.55.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.pages import write_figures
from ratchet.core.config import RewardsConfig
from ratchet.core.records import Score
from ratchet.rewards import runs as rules
from ratchet.rewards.selection import TIE, reward
from ratchet.rounds.plan import ITEMS
from ratchet.sampling.store import Outline

PAGE = Path(__file__).parents[1] / "docs/guides/large-runs.md"
RELIABILITIES = (0.95, 0.8, 0.55)
SAMPLES, MOST, LIST, FACTS = 8, 5, 10, round(ITEMS)
CLAIM_CALLS = 2
"""Calls of faithfulness a run."""
EQUAL = 0.2
"""The share of samples that repeat an answer, where equal answers count."""
WEIGHTS = RewardsConfig().weights
NUGGET_LABELS, CLAIM_LABELS = np.array([-1, 0, 1, 2]), np.array([-1, 0, 1])
STATED, MISSING = (0.0, 0.0, 0.3, 0.7), (0.2, 0.8, 0.0, 0.0)
"""Shares of the scores of a nugget that an answer states, and of one that it lacks."""
Scores = dict[tuple[str, str], Score]


@dataclass(frozen=True)
class DrawnQuestion:
    """A question's answers with their scores by five runs."""

    outlines: list[Outline]
    values: dict[str, dict[str, tuple[float, ...]]]
    """By trajectory and score, the value of each run."""
    equal: dict[str, str]
    """By trajectory, the first one with the same answer."""


def draw(random: np.random.Generator, number: int, reliability: float, equal: float) -> DrawnQuestion:
    """A question: its difficulty, its answers around it, and the verdicts on each."""
    keeps = math.sqrt(reliability)
    level = random.beta(1.5, 1.5)
    outlines, values, first = [], dict[str, dict[str, tuple[float, ...]]](), dict[str, str]()
    for sample in range(SAMPLES):
        key = f"{number}-{sample}"
        outlines.append(Outline(key, str(number), sample, "finished", f"answer {sample}", ""))
        if sample and random.random() < equal:
            first[key] = first[f"{number}-{random.integers(sample)}"]
        else:
            first[key] = key
        quality, support = random.beta(6 * level + 0.5, 6 * (1 - level) + 0.5), random.beta(4, 1.5)
        stated = random.random(FACTS) < quality
        nuggets = np.where(stated, random.choice(4, FACTS, p=STATED), random.choice(4, FACTS, p=MISSING))
        claims = random.choice(3, FACTS, p=(0.7 * (1 - support), 0.3 * (1 - support), support))
        values[key] = {
            "correctness": _runs(random, NUGGET_LABELS[nuggets], NUGGET_LABELS, keeps),
            "faithfulness": _runs(random, CLAIM_LABELS[claims], CLAIM_LABELS, keeps),
        }
    return DrawnQuestion(outlines, values, first)


def _runs(random: np.random.Generator, own: np.ndarray, labels: np.ndarray, keeps: float) -> tuple[float, ...]:
    """The value of each run, whose verdicts are the answer's own or another one of its verdicts."""
    others = random.choice(own, (MOST, len(own)))
    said = np.where(random.random((MOST, len(own))) < keeps, own, others)
    scaled = (said - labels[0]) / (labels[-1] - labels[0])
    return tuple(float(value) for value in scaled.mean(axis=1))


def scores_of(drawn: DrawnQuestion, runs: dict[str, int]) -> Scores:
    """The scores by so many runs of each trajectory; those of equal answers are the first one's."""
    scores: Scores = {}
    for key, first in drawn.equal.items():
        for name, values in drawn.values[first].items():
            given = values[: runs[first]]
            score = Score(trajectory=key, name=name, value=sum(given) / len(given), runs=given)
            scores[key, name] = score if key == first else score.model_copy(update={"equal_to": first})
    return scores


def kept(drawn: DrawnQuestion, scores: Scores) -> set[str]:
    """The trajectories with the best reward."""
    rewards = {one.key: reward(one, scores, WEIGHTS) or 0.0 for one in drawn.outlines}
    return {key for key, value in rewards.items() if value >= max(rewards.values()) - TIE}


def adapted(drawn: DrawnQuestion, min_runs: int) -> dict[str, int]:
    """By trajectory, the runs that are asked for."""
    rule = RewardsConfig().select
    counts = {one.key: min_runs for one in drawn.outlines}
    while more := rules.undecided(drawn.outlines, scores_of(drawn, counts), WEIGHTS, rule, MOST):
        counts |= {drawn.equal[key]: runs for key, runs in more.items()}
    return counts


def measure(options: argparse.Namespace, reliability: float, listed: bool, equal: float, min_runs: int) -> str:
    """Calls a trajectory, and the share of questions that keep what all runs keep, where runs are saved."""
    random = np.random.default_rng(options.seed)
    a_run = math.ceil(FACTS / (LIST if listed else 1)) + CLAIM_CALLS
    calls, same = 0.0, 0
    for number in range(options.questions):
        drawn = draw(random, number, reliability, equal)
        everything = dict.fromkeys(drawn.equal, MOST)
        runs = adapted(drawn, min_runs) if min_runs < MOST else everything
        asked = [runs[key] for key in {*drawn.equal.values()}]
        calls += a_run * sum(asked) + max(asked)  # each run draws the nuggets for all answers to a question
        same += kept(drawn, scores_of(drawn, runs)) == kept(drawn, scores_of(drawn, everything))
    told = f"{calls / (SAMPLES * options.questions):.1f} calls"
    return told if min_runs == MOST else f"{told}, {same / options.questions:.1%}"


def rows(options: argparse.Namespace) -> Iterator[str]:
    """The table as Markdown."""
    yield "| judging | " + " | ".join(f"reliability {value:g}" for value in RELIABILITIES) + " |\n"
    yield "|---|" + "---|" * len(RELIABILITIES) + "\n"
    arms = (
        ("five runs, as in the paper", False, 0.0, MOST),
        ("two to five runs", False, 0.0, 2),
        (f"and {LIST} nuggets a call", True, 0.0, 2),
        (f"and {EQUAL:.0%} equal answers", True, EQUAL, 2),
    )
    for title, listed, equal, min_runs in arms:
        cells = [measure(options, value, listed, equal, min_runs) for value in RELIABILITIES]
        yield f"| {title} | " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge_calls", description=__doc__)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="the width of the intervals was chosen with 0")
    parser.add_argument("--errors", type=float, default=rules.Z, help="standard errors on each side of a mean")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    given = parser.parse_args()
    rules.Z = given.errors
    table = "".join(rows(given))
    print(table)
    if given.write:
        write_figures(PAGE, "benchmarks.judge_calls", table)
