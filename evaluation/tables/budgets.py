"""python -m evaluation budgets --config X: all methods with the same number of tokens, in one table.

A debate of forty calls is compared with a chain of thought that costs a hundredth of it. Here a cheap method gets as
much: its answer to a question is the majority of so many of its samples as fit into the budget (self-consistency, Wang
et al. 2023, arXiv 2203.11171; of equally frequent answers the first), and the number of samples is the same for every
question. The budget is the mean number of tokens, prompt and new, that the most expensive method needs for a question,
or `--tokens`. A method that costs more than the budget by itself has one sample, and the table says so.

It reads stored trajectories and needs no model. `evaluation.baseline_samples` says how many samples of a cheap method
there are. They are drawn at `evaluation.temperature`, like all others; at a low one they are much alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from agents.mad import majority
from evaluation.arms import arm_trajectories
from evaluation.measures.estimates import Estimate
from evaluation.measures.statistics import bootstrap_interval
from evaluation.question_sets import split_of
from evaluation.round_arms import read_arms
from evaluation.tables.suite import percent
from questions.load import load_questions
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.records import Question, Trajectory
from ratchet.runfolder import RoundFolder
from ratchet.tables import print_table
from ratchet.text import NORMALISATIONS, Normalise, normalise_answer
from rewards.rules import is_right

CAPTION = """\
mean \\[95% bootstrap interval over questions]; tokens: prompt and new, of one question
* fewer samples are stored than fit: raise evaluation.baseline_samples; ! one sample costs more than the budget"""


@dataclass(frozen=True)
class Budgeted:
    """A method within a budget."""

    name: str
    tokens: float
    """Mean of one sample."""
    samples: int
    """That are counted, of each question."""
    fit: int
    """That fit into the budget, stored or not; 0 where one is too many."""
    single: Estimate
    """Of one sample: the mean over all that are stored."""
    voted: Estimate
    """Of the majority of the counted ones."""


def print_budgets(
    config: Config, folder: RoundFolder, split: str, tokens: float | None, out: TextIO | None = None
) -> None:
    """Print one question set's table. Raises UserError where it was not evaluated."""
    if tokens is not None and not tokens > 0:
        raise UserError(f"--tokens {tokens:g}: give a number of tokens above 0")
    questions = load_questions(split_of(config.questions, config.evaluation.benchmarks, split), config.seed)
    stores = read_arms(folder, split)
    if not stores:
        raise UserError(f"{split}: no method was run yet; run `python -m evaluation --config ... --split {split}`")
    samples = {name: by_question(questions, arm_trajectories(store)) for name, store in stores.items()}
    budget = max(mean_tokens(found) for found in samples.values()) if tokens is None else tokens
    resamples, seed = config.evaluation.resamples, config.seed
    normalise, keep = NORMALISATIONS[config.rewards.normalisation], config.rewards.select.keep_status
    rows = [within_budget(name, found, budget, resamples, seed, normalise, keep) for name, found in samples.items()]
    title = f"{split}: {len(questions)} questions, {budget:,.0f} tokens for each, in percent"
    print_table(budget_table(title, rows), out)


Samples = list[tuple[Question, list[Trajectory]]]
"""The questions that were asked, each with its trajectories by sample."""


def by_question(questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> Samples:
    """Group by question."""
    found: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=lambda one: one.sample):
        found.setdefault(trajectory.question_id, []).append(trajectory)
    return [(question, found[question.id]) for question in questions if question.id in found]


def mean_tokens(samples: Samples) -> float:
    """The mean over questions of the tokens of one sample."""
    return fmean(fmean(map(_tokens, found)) for _, found in samples) if samples else 0.0


def within_budget(
    name: str,
    samples: Samples,
    budget: float,
    resamples: int,
    seed: int,
    normalise: Normalise = normalise_answer,
    keep_status: Collection[str] = ("finished",),
) -> Budgeted:
    """What a method reaches with so many samples as fit. One that ended in none of the ways `keep_status` has no vote,
    as in the primary measure."""

    def vote(trajectory: Trajectory) -> str:
        return trajectory.answer if trajectory.status in keep_status else ""

    tokens = mean_tokens(samples)
    stored = min((len(found) for _, found in samples), default=1)
    fit = int((budget + 1e-6) // tokens) if tokens else stored
    count = max(1, min(fit, stored))
    voted = [is_right(majority([vote(t) for t in found[:count]]), question, normalise) for question, found in samples]
    single = [[is_right(vote(t), question, normalise) for t in found] for question, found in samples]
    return Budgeted(
        name,
        tokens,
        count,
        fit,
        _estimate([fmean(known) for row in single if (known := [v for v in row if v is not None])], resamples, seed),
        _estimate([value for value in voted if value is not None], resamples, seed),
    )


def budget_table(title: str, rows: Sequence[Budgeted]) -> Table:
    """One row a method."""
    table = Table(title=escape(title), box=SIMPLE_HEAD, title_justify="left")
    table.caption, table.caption_justify = CAPTION, "left"
    table.add_column("method", no_wrap=True)
    for heading in ("tokens,\none sample", "samples\nin budget", "one sample", "majority\nin budget"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        mark = "!" if not row.fit else "*" if row.fit > row.samples else ""
        table.add_row(
            escape(row.name), f"{row.tokens:,.0f}", f"{row.samples}{mark}", percent(row.single), percent(row.voted)
        )
    return table


def _tokens(trajectory: Trajectory) -> int:
    return sum(call.prompt_tokens + call.new_tokens for call in trajectory.model_calls)


def _estimate(values: Sequence[float], resamples: int, seed: int) -> Estimate:
    return bootstrap_interval(values, resamples, seed) if values else Estimate(mean=None, n=0)
