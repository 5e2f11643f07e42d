"""Thresholds for the scores by which a debate may end, from the turns of stored trajectories.

Jeong et al. 2026 (Tool-MAD, arXiv 2601.04742, section III-C) end a debate where scores reach 0.7 and 0.8, read off
histograms of correct and wrong answers (figure 3); relevance is on its embedder's scale, so another embedder needs
thresholds of its own. `ratchet evaluate thresholds` gives the score that all but a share of the correct turns reach
(`--quantile 0.25`: three of four do), and how many wrong ones reach it. Scores that cannot be told are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from rich.markup import escape
from rich.table import Table

from ratchet.agents.core.system import load_system
from ratchet.core.errors import UserError
from ratchet.core.records import Question, Trajectory
from ratchet.core.tables import new_table, print_table
from ratchet.evaluation.tables.stored import StoredSet

CALIBRATE_ON = ("dev", "train")
"""The splits on which thresholds may be chosen: on the reported questions they would be fitted to them."""


@dataclass(frozen=True)
class TurnScore:
    """One score of one turn that gave a label."""

    name: str
    value: float | None
    right: bool
    """Whether the turn's label is the question's."""


Scores = Mapping[tuple[str, str], Sequence[TurnScore]]
"""By question set and method, the scores of its turns."""


def turn_scores(questions: Iterable[Question], trajectories: Iterable[Trajectory]) -> Iterator[TurnScore]:
    """The scores of all turns that gave a label, of questions that have one."""
    labels = {question.id: question.label for question in questions if question.label is not None}
    for trajectory in trajectories:
        label = labels.get(trajectory.question_id)
        for turn in trajectory.turns if label else ():
            for name, value in turn.scores.items() if turn.verdict else ():
                yield TurnScore(name, value, turn.verdict == label)


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
            "`ratchet evaluate --config ...`"
        )
    return scores


def known_values(scores: Iterable[TurnScore], right: bool, name: str) -> list[float]:
    """The values of one score, of the turns whose label is right or of the others."""
    return [s.value for s in scores if s.right is right and s.value is not None and s.name == name]


def find_thresholds(scores: Sequence[TurnScore], quantile: float) -> dict[str, float | None]:
    """By score name, the value that at least 1 - `quantile` of the correct turns reach, rounded down to three digits;
    None where no turn is correct."""
    thresholds: dict[str, float | None] = {}
    for name in dict.fromkeys(score.name for score in scores):
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
        for right in (True, False):
            values = known_values(scores, right, name)
            reach = 0 if threshold is None else sum(value >= threshold for value in values)
            cells += [str(len(values)), "-" if threshold is None or not values else f"{100 * reach / len(values):.1f}%"]
        table.add_row(escape(name), *cells, str(sum(s.value is None for s in scores if s.name == name)))
    return table


def thresholds_setting(thresholds: Mapping[str, float | None]) -> str:
    """The thresholds as a setting of a config; empty without any."""
    known = [f"{name}: {threshold:g}" for name, threshold in thresholds.items() if threshold is not None]
    return f"embedder.thresholds={{{', '.join(known)}}}" if known else ""
