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

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from evaluation.arms import arm_trajectories
from evaluation.question_sets import split_of
from evaluation.round_arms import read_arms
from evaluation.tables.thresholds import TurnScore, turn_scores
from questions.load import load_questions
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.files import write_atomic
from ratchet.runfolder import RoundFolder
from ratchet.tables import print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
RIGHT, WRONG = "#2166ac", "#b2182b"
BINS = 5
"""Of figure 3, from 0 to 1."""


def stored_scores(config: Config, folder: RoundFolder, splits: Iterable[str]) -> dict[tuple[str, str], list[TurnScore]]:
    """By question set and method, the scores of all turns; their table is printed. UserError where there are none."""
    found: dict[tuple[str, str], list[TurnScore]] = {}
    for split in splits:
        questions = load_questions(split_of(config.questions, config.evaluation.benchmarks, split), config.seed)
        for name, store in read_arms(folder, split).items():
            if scores := list(turn_scores(questions, arm_trajectories(store))):
                found[split, name] = scores
    if not found:
        raise UserError(
            "no scored turns: only tool_mad with stability scores has them, on questions with labels; run it first: "
            "`python -m evaluation --config ...`"
        )
    for (split, name), scores in found.items():
        print_table(score_table(f"{split}, {name}", scores))
    return found


def score_table(title: str, scores: Sequence[TurnScore]) -> Table:
    """A row for each agent, round and score, then one over all rounds."""
    table = Table(title=escape(title), box=SIMPLE_HEAD)
    for heading in ("agent", "round", "score"):
        table.add_column(heading)
    for heading in ("right", "mean", "wrong", "mean", "unknown"):
        table.add_column(heading, justify="right")
    agents = dict.fromkeys(one.agent for one in scores)
    last = max(one.round for one in scores)
    for agent in agents:
        for number in (*range(1, last + 1), None):
            for name in dict.fromkeys(one.name for one in scores):
                cell = [s for s in scores if (s.agent, s.name) == (agent, name) and number in (s.round, None)]
                if cell:
                    right, wrong = known_values(cell, True), known_values(cell, False)
                    unknown = sum(one.value is None for one in cell)
                    row = (str(len(right)), _mean(right), str(len(wrong)), _mean(wrong), str(unknown))
                    table.add_row(escape(agent), "all" if number is None else str(number), name, *row)
    return table


def known_values(scores: Iterable[TurnScore], right: bool) -> list[float]:
    """The values of the turns whose label is right, or of the others."""
    return [one.value for one in scores if one.right is right and one.value is not None]


def mean_by_trajectory(scores: Iterable[TurnScore], right: bool) -> list[float]:
    """The mean over its rounds of each trajectory whose answer is right, or of the others."""
    values: dict[str, list[float]] = {}
    for one in scores:
        if one.answer_right is right and one.value is not None:
            values.setdefault(one.trajectory, []).append(one.value)
    return [fmean(each) for each in values.values()]


def draw_all(found: Mapping[tuple[str, str], Sequence[TurnScore]], folder: Path, kind: str) -> list[Path]:
    """Draw both figures; returns the files."""
    drawn = {f"scores-{split}-{name}": distributions(f"{split}, {name}", s) for (split, name), s in found.items()}
    for name in dict.fromkeys(name for _, name in found):
        sets = {split: scores for (split, arm), scores in found.items() if arm == name}
        drawn[f"means-{name}"] = means(name, sets)
    return save_figures(drawn, folder, kind)


def save_figures(drawn: Mapping[str, Figure], folder: Path, kind: str) -> list[Path]:
    """Write each figure into a file of its name; returns the files."""
    import io

    import matplotlib

    paths = []
    for stem, figure in drawn.items():
        path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', stem)}.{kind}"
        out = io.BytesIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": stem}):
            # Without the date, the same records give the same file.
            figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else None)
        write_atomic(path, out.getvalue())
        paths.append(path)
    return paths


def distributions(title: str, scores: Sequence[TurnScore]) -> Figure:
    """Figure 3: agents are rows, scores are columns."""
    from matplotlib.figure import Figure

    agents, names = (list(dict.fromkeys(values)) for values in zip(*((s.agent, s.name) for s in scores), strict=True))
    figure = Figure(figsize=(3.4 * len(names), 2.4 * len(agents) + 0.4), layout="constrained")
    grid = figure.subplots(len(agents), len(names), squeeze=False, sharey=True)
    edges = [n / BINS for n in range(BINS + 1)]
    for row, agent in zip(grid, agents, strict=True):
        for axes, name in zip(row, names, strict=True):
            cell = [one for one in scores if (one.agent, one.name) == (agent, name)]
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

    names = list(dict.fromkeys(one.name for scores in sets.values() for one in scores))
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
