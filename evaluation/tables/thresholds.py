"""Thresholds for the scores by which a debate may end (Tool-MAD's stability scores), from how they spread on dev.

Jeong et al. 2026 (arXiv 2601.04742, section III-C, figure 3) read 0.7 and 0.8 off histograms of correct and wrong
answers; relevance is on its embedder's scale, so another embedder or scorer needs thresholds of its own.

Here a threshold is the score that all but a given share of the correct answers reach (`--quantile 0.25`: three of four
do); the table also shows how many wrong ones reach it. An answer is one agent's turn in one round, right if its label
is the question's. The trajectories are stored ones, so no model is needed. `embedder.thresholds` sets the thresholds
of every system of a config. A run folder keeps its thresholds: use new ones in a new folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from agents.core.system import load_system
from evaluation.arms import arm_trajectories
from evaluation.question_sets import split_of
from evaluation.round_arms import read_arms
from questions.load import load_questions
from ratchet.config import Config
from ratchet.console import wide_console
from ratchet.errors import UserError
from ratchet.records import Question, Trajectory
from ratchet.runfolder import RoundFolder
from ratchet.tables import print_table

SHOWN = (0.1, 0.25, 0.5, 0.75, 0.9)
WIDTH = 120
CALIBRATE_ON = ("dev", "train")
"""The splits on which thresholds may be chosen: on the reported questions they would be fitted to them."""


@dataclass(frozen=True)
class ScoreDistribution:
    """One score's values, of correct and of wrong turns."""

    name: str
    right: tuple[float, ...]
    wrong: tuple[float, ...]
    unknown: int
    """Turns with a label whose score is undefined."""

    def threshold(self, quantile: float) -> float | None:
        """The score that at least 1 - `quantile` of the correct turns reach, rounded down to three digits.

        None where no turn is correct.
        """
        if not self.right:
            return None
        return math.floor(1000 * float(np.quantile(self.right, quantile, method="lower"))) / 1000


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


def turn_scores(questions: Iterable[Question], trajectories: Iterable[Trajectory]) -> Iterator[TurnScore]:
    """The scores of all turns that gave a label, of questions that have one."""
    labels = {question.id: question.label for question in questions if question.label is not None}
    for trajectory in trajectories:
        label = labels.get(trajectory.question_id)
        for turn in trajectory.turns if label else ():
            for name, value in turn.scores.items() if turn.verdict else ():
                right = turn.verdict == label
                yield TurnScore(
                    trajectory.key, turn.speaker, turn.round, name, value, right, trajectory.answer == label
                )


def score_distributions(questions: Iterable[Question], trajectories: Iterable[Trajectory]) -> list[ScoreDistribution]:
    """By score name, over all turns that gave a label, of questions that have one."""
    found: dict[str, tuple[list[float], list[float], list[None]]] = {}
    for score in turn_scores(questions, trajectories):
        right, wrong, unknown = found.setdefault(score.name, ([], [], []))
        if score.value is None:
            unknown.append(None)
        else:
            (right if score.right else wrong).append(score.value)
    return [
        ScoreDistribution(name, tuple(right), tuple(wrong), len(unknown))
        for name, (right, wrong, unknown) in found.items()
    ]


def print_thresholds(
    config: Config,
    folder: RoundFolder,
    split: str,
    quantile: float,
    setting_only: bool = False,
    out: TextIO | None = None,
) -> None:
    """Print the score distributions of every arm that ends by thresholds, and its thresholds for the config.

    `setting_only`: print nothing but the argument of --set that gives the first arm's thresholds to every system.
    """
    if split not in CALIBRATE_ON:
        raise UserError(
            f"--split {split}: thresholds are chosen on dev or train, never on the questions that are reported"
        )
    if not 0 <= quantile <= 1:
        raise UserError(f"--quantile {quantile:g}: give a share of the correct answers, from 0 to 1")
    questions = load_questions(split_of(config.questions, config.evaluation.benchmarks, split), config.seed)
    console = wide_console(WIDTH, out)
    shown = False
    for name, store in read_arms(folder, split).items():
        manifest = store.manifest()
        if manifest is None or "thresholds" not in type(load_system(manifest.system).settings).model_fields:
            continue
        found = score_distributions(questions, arm_trajectories(store))
        if not found:
            continue
        shown = True
        line = thresholds_line(found, quantile)
        flag = "embedder.thresholds=" + line.removeprefix("thresholds: ")
        if setting_only:
            if line.startswith("#"):
                raise UserError(f"{split}, {name}: no answer was right, so there are no thresholds")
            print(flag, file=out)
            return
        print_table(distribution_table(f"{split}, {name}, {config.embedder.path}", found, quantile), out)
        key = "evaluation.baselines." + name if name in config.evaluation.baselines else "system"
        console.print(f"{key}.settings:\n  {line}\n", markup=False)
        if not line.startswith("#"):
            console.print(f"for every system at once, in a new run folder: --set '{flag}'\n", markup=False)
    if not shown:
        raise UserError(
            f"no scored answers on {split}: only tool_mad with stability scores has thresholds; run it first: "
            f"`python -m evaluation --config ... --split {split}`"
        )


def distribution_table(title: str, found: Sequence[ScoreDistribution], quantile: float) -> Table:
    """Quantiles of each score for right and wrong answers, with the threshold that `quantile` gives."""
    table = Table(title=escape(title), box=SIMPLE_HEAD)
    for heading in ("score", "answers", "n", *(f"{100 * share:g}%" for share in SHOWN), "threshold", "reach it"):
        table.add_column(heading, justify="left" if heading in ("score", "answers") else "right")
    table.caption = f"quantiles of the scores; threshold: the {100 * quantile:g}% quantile of the right answers"
    for spread in found:
        threshold = spread.threshold(quantile)
        for kind, values in (("right", spread.right), ("wrong", spread.wrong)):
            marks = [f"{mark:.3f}" for mark in np.quantile(values, SHOWN)] if values else ["-"] * len(SHOWN)
            reach = "-" if threshold is None or not values else f"{100 * np.mean(np.array(values) >= threshold):.1f}%"
            shown = "-" if threshold is None else f"{threshold:.3f}"
            first = kind == "right"
            table.add_row(
                escape(spread.name) if first else "", kind, str(len(values)), *marks, shown if first else "", reach
            )
        if spread.unknown:
            table.add_row("", "unknown", str(spread.unknown))
    return table


def thresholds_line(found: Sequence[ScoreDistribution], quantile: float) -> str:
    """The thresholds as a line of YAML for a config."""
    known = [(spread.name, threshold) for spread in found if (threshold := spread.threshold(quantile)) is not None]
    if not known:
        return "# no answer was right: no thresholds"
    return f"thresholds: {{{', '.join(f'{name}: {threshold:g}' for name, threshold in known)}}}"
