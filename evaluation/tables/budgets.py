"""ratchet evaluate budgets --config X: all methods with the same number of tokens, in one table.

A debate of forty calls is compared with a chain of thought that costs a hundredth of it. Here a cheap method gets as
much: its answer to a question is the majority of so many of its samples as fit into the budget (self-consistency, Wang
et al. 2023, arXiv 2203.11171; of equally frequent answers the first), and the number of samples is the same for every
question. The budget is the mean number of tokens, prompt and new, that the most expensive method needs for a question.

It reads stored trajectories and needs no model. `evaluation.baseline_samples` says how many samples of a cheap method
there are. They are drawn at `evaluation.temperature`, like all others; at a low one they are much alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.markup import escape
from rich.table import Table

from ratchet.agents.debates import majority
from ratchet.core.config import Config
from ratchet.core.records import ModelCall, Question, Trajectory
from ratchet.core.tables import new_table, print_table
from ratchet.core.text import NORMALISATIONS, Normalise, normalise_answer
from ratchet.evaluation.measures.estimates import Estimate
from ratchet.evaluation.measures.statistics import bootstrap_interval
from ratchet.evaluation.tables.stored import StoredSet
from ratchet.evaluation.tables.suite import percent
from ratchet.rewards.rules import is_right

CAPTION = """\
mean \\[95% bootstrap interval over questions]; tokens: prompt and new, of one question
* fewer samples are stored than fit: raise evaluation.baseline_samples"""


@dataclass(frozen=True)
class Budgeted:
    """A method within a budget."""

    name: str
    tokens: float
    """Mean of one sample."""
    thoughts: float
    """How many of them are thoughts."""
    samples: int
    """That are counted, of each question."""
    fit: int
    """That fit into the budget, stored or not."""
    single: Estimate
    """Of one sample: the mean over all that are stored."""
    voted: Estimate
    """Of the majority of the counted ones."""


def print_budgets(config: Config, stored: StoredSet) -> None:
    """Print one question set's table."""
    samples = {name: by_question(stored.questions, stored.trajectories(name)) for name in stored.stores}
    budget = max(map(mean_tokens, samples.values()))
    seed = config.seed
    normalise, keep = NORMALISATIONS[config.rewards.normalisation], config.rewards.select.keep_status
    rows = [within_budget(name, asked, budget, seed, normalise, keep) for name, asked in samples.items()]
    title = f"{stored.split}: {len(stored.questions)} questions, {budget:,.0f} tokens for each, in percent"
    print_table(budget_table(title, rows))


Samples = list[tuple[Question, list[Trajectory]]]
"""The questions that were asked, each with its trajectories by sample."""


def by_question(questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> Samples:
    """Group by question."""
    samples: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=lambda trajectory: trajectory.sample):
        samples.setdefault(trajectory.question_id, []).append(trajectory)
    return [(question, samples[question.id]) for question in questions if question.id in samples]


def mean_tokens(samples: Samples) -> float:
    """The mean over questions of the tokens of one sample."""
    return _mean(samples, lambda call: call.prompt_tokens + call.new_tokens)


def _mean(samples: Samples, tokens: Callable[[ModelCall], int]) -> float:
    """The mean over questions of so many tokens of one sample's calls."""
    sums = ([sum(map(tokens, trajectory.model_calls)) for trajectory in sampled] for _, sampled in samples)
    return fmean(map(fmean, sums)) if samples else 0.0


def within_budget(
    name: str,
    samples: Samples,
    budget: float,
    seed: int,
    normalise: Normalise = normalise_answer,
    keep_status: Collection[str] = ("finished",),
) -> Budgeted:
    """What a method reaches with so many samples as fit. One that ended in none of the ways `keep_status` has no vote,
    as in the primary measure."""

    def vote(trajectory: Trajectory) -> str:
        return trajectory.answer if trajectory.status in keep_status else ""

    tokens = mean_tokens(samples)
    stored = min((len(sampled) for _, sampled in samples), default=1)
    fit = int((budget + 1e-6) // tokens) if tokens else stored
    count = max(1, min(fit, stored))
    voted = [
        is_right(majority([vote(t) for t in sampled[:count]]), question, normalise) for question, sampled in samples
    ]
    single = [[is_right(vote(t), question, normalise) for t in sampled] for question, sampled in samples]
    means = [fmean(known) for row in single if (known := [value for value in row if value is not None])]
    intervals = (bootstrap_interval(v, seed) for v in (means, [v for v in voted if v is not None]))
    return Budgeted(name, tokens, _mean(samples, lambda call: call.thought_tokens), count, fit, *intervals)


def budget_table(title: str, rows: Sequence[Budgeted]) -> Table:
    """One row a method."""
    headings = ("tokens,\none sample", "samples\nin budget", "one sample", "majority\nin budget")
    table = new_table(escape(title), ("method",), headings, CAPTION)
    for row in rows:
        mark = "*" if row.fit > row.samples else ""
        tokens = f"{row.tokens:,.0f}" + (f"\n{row.thoughts:,.0f} of thoughts" if row.thoughts else "")
        table.add_row(escape(row.name), tokens, f"{row.samples}{mark}", percent(row.single), percent(row.voted))
    return table
