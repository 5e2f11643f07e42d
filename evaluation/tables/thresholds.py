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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from rich.markup import escape
from rich.table import Table

from agents.core.system import load_system
from evaluation.tables.stored import StoredSet
from ratchet.console import wide_console
from ratchet.errors import UserError
from ratchet.records import Question, Trajectory
from ratchet.tables import new_table, print_table

SHOWN = (0.1, 0.25, 0.5, 0.75, 0.9)
WIDTH = 120
CALIBRATE_ON = ("dev", "train")
"""The splits on which thresholds may be chosen: on the reported questions they would be fitted to them."""


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


def known_values(scores: Iterable[TurnScore], right: bool) -> list[float]:
    """The values of the turns whose label is right, or of the others."""
    return [score.value for score in scores if score.right is right and score.value is not None]


def find_thresholds(scores: Sequence[TurnScore], quantile: float) -> dict[str, float | None]:
    """By score name, the value that at least 1 - `quantile` of the correct turns reach, rounded down to three digits;
    None where no turn is correct."""
    thresholds: dict[str, float | None] = {}
    for name in dict.fromkeys(score.name for score in scores):
        right = known_values((score for score in scores if score.name == name), True)
        at = float(np.quantile(right, quantile, method="lower")) if right else None
        thresholds[name] = None if at is None else math.floor(1000 * at) / 1000
    return thresholds


def print_thresholds(
    stored: StoredSet,
    quantile: float,
    embedder: str,
    baselines: Collection[str],
    setting_only: bool = False,
    out: TextIO | None = None,
) -> None:
    """Print the score distributions of every method that ends by thresholds, and its thresholds for the config.

    `embedder`: the name of the one that gave the scores. `baselines`: the methods that are baselines of the config.
    `setting_only`: print nothing but the argument of --set that gives the first method's thresholds to every system.
    """
    if stored.split not in CALIBRATE_ON:
        raise UserError(
            f"--split {stored.split}: thresholds are chosen on dev or train, never on the questions that are reported"
        )
    if not 0 <= quantile <= 1:
        raise UserError(f"--quantile {quantile:g}: give a share of the correct answers, from 0 to 1")
    console = wide_console(WIDTH, out)
    shown = False
    for name, store in stored.stores.items():
        manifest = store.manifest()
        if manifest is None or "thresholds" not in type(load_system(manifest.system).settings).model_fields:
            continue
        scores = list(turn_scores(stored.questions, stored.trajectories(name)))
        if not scores:
            continue
        shown = True
        thresholds = find_thresholds(scores, quantile)
        line = thresholds_line(thresholds)
        flag = "embedder.thresholds=" + line.removeprefix("thresholds: ")
        if setting_only:
            if line.startswith("#"):
                raise UserError(f"{stored.split}, {name}: no answer was right, so there are no thresholds")
            print(flag, file=out)
            return
        title = f"{stored.split}, {name}, {embedder}"
        print_table(distribution_table(title, scores, thresholds, quantile), out)
        key = "evaluation.baselines." + name if name in baselines else "system"
        console.print(f"{key}.settings:\n  {line}\n", markup=False)
        if not line.startswith("#"):
            console.print(f"for every system at once, in a new run folder: --set '{flag}'\n", markup=False)
    if not shown:
        raise UserError(
            f"no scored answers on {stored.split}: only tool_mad with stability scores has thresholds; run it first: "
            f"`python -m evaluation --config ... --split {stored.split}`"
        )


def distribution_table(
    title: str, scores: Sequence[TurnScore], thresholds: Mapping[str, float | None], quantile: float
) -> Table:
    """Quantiles of each score for right and wrong answers, with its threshold, which `quantile` gave."""
    caption = f"quantiles of the scores; threshold: the {100 * quantile:g}% quantile of the right answers"
    numbers = ("n", *(f"{100 * share:g}%" for share in SHOWN), "threshold", "reach it")
    table = new_table(escape(title), ("score", "answers"), numbers, caption)
    for name, threshold in thresholds.items():
        named = [score for score in scores if score.name == name]
        for right in (True, False):
            values = known_values(named, right)
            marks = [f"{mark:.3f}" for mark in np.quantile(values, SHOWN)] if values else ["-"] * len(SHOWN)
            reach = "-" if threshold is None or not values else f"{100 * np.mean(np.array(values) >= threshold):.1f}%"
            heading, shown = (escape(name), "-" if threshold is None else f"{threshold:.3f}") if right else ("", "")
            table.add_row(heading, "right" if right else "wrong", str(len(values)), *marks, shown, reach)
        if unknown := sum(score.value is None for score in named):
            table.add_row("", "unknown", str(unknown))
    return table


def thresholds_line(thresholds: Mapping[str, float | None]) -> str:
    """The thresholds as a line of YAML for a config."""
    known = [f"{name}: {threshold:g}" for name, threshold in thresholds.items() if threshold is not None]
    return f"thresholds: {{{', '.join(known)}}}" if known else "# no answer was right: no thresholds"
