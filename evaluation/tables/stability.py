"""python -m evaluation stability --config X: how a debate's scores tell right answers from wrong ones.

It makes figures 3 and 11 of Tool-MAD (Jeong et al. 2026, arXiv 2601.04742) of stored trajectories, for every evaluated
question set and every method that scores its turns, and needs no model:

    scores-<set>-<method>.svg   figure 3: for each agent and score, how many trajectories have which mean over their
                                rounds, by whether the answer is right
    means-<method>.svg          figure 11: for each score, the mean over all turns by question set, of turns whose label
                                is right and of those whose label is wrong

and prints a table by set, method, agent and round. The paper does not say whether figure 3 goes by the agent's label or
the answer; the answer is our reading. Scores that cannot be told are counted and in no mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from evaluation.tables.stored import StoredSet, save_figures
from evaluation.tables.thresholds import TurnScore, known_values, turn_scores
from ratchet.errors import UserError
from ratchet.tables import new_table, print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIGHT, WRONG = "#2166ac", "#b2182b"
BINS = 5
"""Of figure 3, from 0 to 1."""
Scores = Mapping[tuple[str, str], Sequence[TurnScore]]
"""By question set and method, the scores of its turns."""


def print_stability(sets: Iterable[StoredSet]) -> Scores:
    """Print a table for each question set and method; returns what the figures show. UserError without a score."""
    scores = {
        (stored.split, name): of_method
        for stored in sets
        for name in stored.stores
        if (of_method := list(turn_scores(stored.questions, stored.trajectories(name))))
    }
    if not scores:
        raise UserError(
            "no scored turns: only tool_mad with stability scores has them, on questions with labels; run it first: "
            "`python -m evaluation --config ...`"
        )
    for (split, name), of_method in scores.items():
        print_table(score_table(f"{split}, {name}", of_method))
    return scores


def score_table(title: str, scores: Sequence[TurnScore]) -> Table:
    """A row for each agent, round and score, then one over all rounds."""
    numbers = ("right", "mean", "wrong", "mean", "unknown")
    table = new_table(escape(title), ("agent", "round", "score"), numbers)
    names = dict.fromkeys(score.name for score in scores)
    for agent in dict.fromkeys(score.agent for score in scores):
        for number in (*range(1, max(score.round for score in scores) + 1), None):
            for name in names:
                cell = [s for s in scores if (s.agent, s.name) == (agent, name) and number in (s.round, None)]
                if cell:
                    right, wrong = known_values(cell, True), known_values(cell, False)
                    unknown = sum(score.value is None for score in cell)
                    row = (str(len(right)), _mean(right), str(len(wrong)), _mean(wrong), str(unknown))
                    table.add_row(escape(agent), "all" if number is None else str(number), name, *row)
    return table


def mean_by_trajectory(scores: Iterable[TurnScore], right: bool) -> list[float]:
    """The mean over its rounds of each trajectory whose answer is right, or of the others."""
    values: dict[str, list[float]] = {}
    for score in scores:
        if score.answer_right is right and score.value is not None:
            values.setdefault(score.trajectory, []).append(score.value)
    return [fmean(each) for each in values.values()]


def draw_all(scores: Scores, folder: Path, kind: str) -> list[Path]:
    """Draw both figures; returns the files."""
    drawn = {f"scores-{split}-{name}": distributions(f"{split}, {name}", s) for (split, name), s in scores.items()}
    for name in dict.fromkeys(name for _, name in scores):
        drawn[f"means-{name}"] = means(name, {split: s for (split, arm), s in scores.items() if arm == name})
    return save_figures(drawn, folder, kind)


def distributions(title: str, scores: Sequence[TurnScore]) -> Figure:
    """Figure 3: agents are rows, scores are columns."""
    from matplotlib.figure import Figure

    agents, names = (list(dict.fromkeys(values)) for values in zip(*((s.agent, s.name) for s in scores), strict=True))
    figure = Figure(figsize=(3.4 * len(names), 2.4 * len(agents) + 0.4), layout="constrained")
    grid = figure.subplots(len(agents), len(names), squeeze=False, sharey=True)
    edges = [n / BINS for n in range(BINS + 1)]
    for row, agent in zip(grid, agents, strict=True):
        for axes, name in zip(row, names, strict=True):
            cell = [score for score in scores if (score.agent, score.name) == (agent, name)]
            shown = [mean_by_trajectory(cell, True), mean_by_trajectory(cell, False)]
            labels = [f"right, {len(shown[0])}", f"wrong, {len(shown[1])}"]
            axes.hist(shown, edges, color=[RIGHT, WRONG], label=labels)
            axes.set(title=f"{agent}: {name}", xlim=(0, 1), ylabel="trajectories")
            axes.legend(fontsize="small", frameon=False)
    figure.suptitle(f"{title}: mean of the rounds, by the answer")
    return figure


def means(title: str, sets: Mapping[str, Sequence[TurnScore]]) -> Figure:
    """Figure 11: a panel for each score, a pair of bars for each question set."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(score.name for scores in sets.values() for score in scores))
    figure = Figure(figsize=(3.6 * len(names), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for offset, right, colour in ((-0.2, True, RIGHT), (0.2, False, WRONG)):
            values = [known_values((s for s in scores if s.name == name), right) for scores in sets.values()]
            at = [n + offset for n, each in enumerate(values) if each]
            axes.bar(at, [fmean(v) for v in values if v], 0.4, color=colour, label="right" if right else "wrong")
        axes.set(title=name, ylim=(0, 1), xticks=range(len(sets)), xticklabels=list(sets), ylabel="mean of the turns")
        axes.legend(fontsize="small", frameon=False)
    figure.suptitle(f"{title}: by the turn's label")
    return figure


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" if values else "-"
