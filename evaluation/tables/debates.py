"""The scores of a debate's turns, of stored trajectories: thresholds for them, and how they tell right from wrong.

Jeong et al. 2026 (Tool-MAD, arXiv 2601.04742, section III-C) end a debate where scores reach 0.7 and 0.8, read off
histograms of correct and wrong answers (figure 3); relevance is on its embedder's scale, so another embedder needs
thresholds of its own. `python -m evaluation thresholds` gives the score that all but a share of the correct turns reach
(`--quantile 0.25`: three of four do), and how many wrong ones reach it.

`python -m evaluation stability` prints a table by question set, method, agent and round, and draws figures 3 and 11:

    scores-<set>-<method>.svg   figure 3: for each agent and score, how many trajectories have which mean over their
                                rounds, by whether the answer is right
    means-<method>.svg          figure 11: for each score, the mean over all turns by question set, of turns whose label
                                is right and of those whose label is wrong

The paper does not say whether figure 3 goes by the agent's label or the answer; the answer is our reading. Scores that
cannot be told are counted and in no mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, TextIO

import numpy as np
from rich.markup import escape
from rich.table import Table

from agents.core.system import load_system
from evaluation.tables.stored import StoredSet, save_figures
from ratchet.errors import UserError
from ratchet.records import Question, Trajectory
from ratchet.tables import new_table, print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CALIBRATE_ON = ("dev", "train")
"""The splits on which thresholds may be chosen: on the reported questions they would be fitted to them."""
SIDES = ((True, "right", "#2166ac"), (False, "wrong", "#b2182b"))
BINS = 5
"""Of figure 3, from 0 to 1."""


@dataclass(frozen=True)
class TurnScore:
    """One score of one turn that gave a label."""

    trajectory: str
    """Its key."""
    agent: str
    round: int
    name: str
    value: float | None
    right: bool
    """Whether the turn's label is the question's."""
    answer_right: bool
    """Whether the trajectory's answer is."""


Scores = Mapping[tuple[str, str], Sequence[TurnScore]]
"""By question set and method, the scores of its turns."""


def turn_scores(questions: Iterable[Question], trajectories: Iterable[Trajectory]) -> Iterator[TurnScore]:
    """The scores of all turns that gave a label, of questions that have one."""
    labels = {question.id: question.label for question in questions if question.label is not None}
    for trajectory in trajectories:
        label = labels.get(trajectory.question_id)
        for turn in trajectory.turns if label else ():
            for name, value in turn.scores.items() if turn.verdict else ():
                right = (turn.verdict == label, trajectory.answer == label)
                yield TurnScore(trajectory.key, turn.speaker, turn.round, name, value, *right)


def stored_scores(sets: Iterable[StoredSet]) -> Scores:
    """Those of every method that scores its turns. UserError where none does."""
    scores = {
        (stored.split, name): own
        for stored in sets
        for name in stored.stores
        if (own := list(turn_scores(stored.questions, stored.trajectories(name))))
    }
    if not scores:
        raise UserError(
            "no scored turns: only tool_mad with stability scores has them, on questions with labels; run it first: "
            "`python -m evaluation --config ...`"
        )
    return scores


def known_values(scores: Iterable[TurnScore], right: bool, name: str | None = None) -> list[float]:
    """The values, of one score or of all, of the turns whose label is right, or of the others."""
    return [s.value for s in scores if s.right is right and s.value is not None and name in (None, s.name)]


def names_of(scores: Iterable[TurnScore]) -> list[str]:
    """The names of the scores."""
    return list(dict.fromkeys(score.name for score in scores))


def find_thresholds(scores: Sequence[TurnScore], quantile: float) -> dict[str, float | None]:
    """By score name, the value that at least 1 - `quantile` of the correct turns reach, rounded down to three digits;
    None where no turn is correct."""
    thresholds: dict[str, float | None] = {}
    for name in names_of(scores):
        right = known_values(scores, True, name)
        at = float(np.quantile(right, quantile, method="lower")) if right else None
        thresholds[name] = None if at is None else math.floor(1000 * at) / 1000
    return thresholds


def print_thresholds(stored: StoredSet, quantile: float, setting_only: bool = False, out: TextIO | None = None) -> None:
    """Print the thresholds of every method that ends by some, and the argument of --set that gives them to all systems.

    `setting_only`: print nothing but this argument, of the first method.
    """
    if stored.split not in CALIBRATE_ON:
        raise UserError(
            f"--split {stored.split}: thresholds are chosen on dev or train, never on the questions that are reported"
        )
    if not 0 <= quantile <= 1:
        raise UserError(f"--quantile {quantile:g}: give a share of the correct answers, from 0 to 1")
    for (split, name), scores in stored_scores([stored]).items():
        manifest = stored.stores[name].manifest()
        if manifest is None or "thresholds" not in type(load_system(manifest.system).settings).model_fields:
            continue
        thresholds = find_thresholds(scores, quantile)
        setting = thresholds_setting(thresholds)
        if setting_only and not setting:
            raise UserError(f"{split}, {name}: no answer was right, so there are no thresholds")
        if setting_only:
            return print(setting, file=out)
        print_table(threshold_table(f"{split}, {name}", scores, thresholds), out)
        if setting:
            print(f"for every system, in a new run folder: --set '{setting}'\n", file=out)


def threshold_table(title: str, scores: Sequence[TurnScore], thresholds: Mapping[str, float | None]) -> Table:
    """Each score's threshold, and how many right and wrong turns reach it."""
    numbers = ("threshold", "right", "reach it", "wrong", "reach it", "unknown")
    table = new_table(escape(title), ("score",), numbers)
    for name, threshold in thresholds.items():
        cells = ["-" if threshold is None else f"{threshold:.3f}"]
        for right, _, _ in SIDES:
            values = known_values(scores, right, name)
            reach = 0 if threshold is None else sum(value >= threshold for value in values)
            cells += [str(len(values)), "-" if threshold is None or not values else f"{100 * reach / len(values):.1f}%"]
        table.add_row(escape(name), *cells, str(sum(s.value is None for s in scores if s.name == name)))
    return table


def thresholds_setting(thresholds: Mapping[str, float | None]) -> str:
    """The thresholds as a setting of a config; empty without any."""
    known = [f"{name}: {threshold:g}" for name, threshold in thresholds.items() if threshold is not None]
    return f"embedder.thresholds={{{', '.join(known)}}}" if known else ""


def score_table(title: str, scores: Sequence[TurnScore]) -> Table:
    """A row for each agent, round and score, then one over all rounds."""
    table = new_table(escape(title), ("agent", "round", "score"), ("right", "mean", "wrong", "mean", "unknown"))
    for agent in dict.fromkeys(score.agent for score in scores):
        for number in (*range(1, max(score.round for score in scores) + 1), None):
            for name in names_of(scores):
                cell = [s for s in scores if (s.agent, s.name) == (agent, name) and number in (s.round, None)]
                if cell:
                    sides = [known_values(cell, right) for right, _, _ in SIDES]
                    row = [text for side in sides for text in (str(len(side)), f"{fmean(side):.3f}" if side else "-")]
                    unknown = sum(score.value is None for score in cell)
                    table.add_row(escape(agent), str(number or "all"), name, *row, str(unknown))
    return table


def mean_by_trajectory(scores: Iterable[TurnScore], right: bool) -> list[float]:
    """The mean over its rounds of each trajectory whose answer is right, or of the others."""
    values: dict[str, list[float]] = {}
    for score in scores:
        if score.answer_right is right and score.value is not None:
            values.setdefault(score.trajectory, []).append(score.value)
    return [fmean(each) for each in values.values()]


def print_stability(sets: Iterable[StoredSet], folder: Path) -> list[Path]:
    """Print a table for each question set and method, and draw both figures into `folder`; returns the files."""
    scores = stored_scores(sets)
    for (split, name), own in scores.items():
        print_table(score_table(f"{split}, {name}", own))
    figures = {f"scores-{split}-{name}": distributions(f"{split}, {name}", s) for (split, name), s in scores.items()}
    for name in dict.fromkeys(name for _, name in scores):
        figures[f"means-{name}"] = means(name, {split: s for (split, arm), s in scores.items() if arm == name})
    return save_figures(figures, folder)


def distributions(title: str, scores: Sequence[TurnScore]) -> Figure:
    """Figure 3: agents are rows, scores are columns."""
    from matplotlib.figure import Figure

    agents, names = list(dict.fromkeys(score.agent for score in scores)), names_of(scores)
    figure = Figure(figsize=(3.4 * len(names), 2.4 * len(agents) + 0.4), layout="constrained")
    grid = figure.subplots(len(agents), len(names), squeeze=False, sharey=True)
    edges = [n / BINS for n in range(BINS + 1)]
    for row, agent in zip(grid, agents, strict=True):
        for axes, name in zip(row, names, strict=True):
            cell = [score for score in scores if (score.agent, score.name) == (agent, name)]
            shown = [mean_by_trajectory(cell, right) for right, _, _ in SIDES]
            labels = [f"{side}, {len(values)}" for (_, side, _), values in zip(SIDES, shown, strict=True)]
            axes.hist(shown, edges, color=[colour for *_, colour in SIDES], label=labels)
            axes.set(title=f"{agent}: {name}", xlim=(0, 1), ylabel="trajectories")
            axes.legend(fontsize="small", frameon=False)
    figure.suptitle(f"{title}: mean of the rounds, by the answer")
    return figure


def means(title: str, sets: Mapping[str, Sequence[TurnScore]]) -> Figure:
    """Figure 11: a panel for each score, a pair of bars for each question set."""
    from matplotlib.figure import Figure

    names = names_of(score for scores in sets.values() for score in scores)
    figure = Figure(figsize=(3.6 * len(names), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for offset, (right, side, colour) in zip((-0.2, 0.2), SIDES, strict=True):
            values = [known_values(scores, right, name) for scores in sets.values()]
            at = [n + offset for n, each in enumerate(values) if each]
            axes.bar(at, [fmean(v) for v in values if v], 0.4, color=colour, label=side)
        axes.set(title=name, ylim=(0, 1), xticks=range(len(sets)), xticklabels=list(sets), ylabel="mean of the turns")
        axes.legend(fontsize="small", frameon=False)
    figure.suptitle(f"{title}: by the turn's label")
    return figure
