"""What the tables of stored trajectories read, and the figures that they draw."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.arms import ArmSettings, arm_trajectories
from evaluation.round_arms import read_arms
from ratchet.errors import UserError
from ratchet.files import write_atomic
from ratchet.records import Question, Trajectory
from ratchet.runfolder import RoundFolder
from sampling.store import TrajectoryStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StoredSet:
    """A question set, and every method that a round was evaluated with on it."""

    split: str
    questions: Sequence[Question]
    stores: Mapping[str, TrajectoryStore]
    """By method, in the order of the round's table."""

    def trajectories(self, method: str) -> list[Trajectory]:
        """Without their conversations. Raises UserError where some are missing."""
        return arm_trajectories(self.stores[method])


def stored_set(settings: ArmSettings, folder: RoundFolder, split: str) -> StoredSet:
    """What a round stored on a question set. Raises UserError where it was not evaluated on it."""
    stores = read_arms(folder, split)
    if not stores:
        raise UserError(f"{split}: no method was run yet; run `python -m evaluation --config ... --split {split}`")
    return StoredSet(split, settings.question_set(split).questions, stores)


def save_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write each figure into an SVG file of its name; returns the files."""
    import matplotlib

    paths = []
    for stem, figure in figures.items():
        path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', stem)}.svg"
        out = io.BytesIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": stem}):
            # Without the date, the same records give the same file.
            figure.savefig(out, format="svg", metadata={"Date": None})
        write_atomic(path, out.getvalue())
        paths.append(path)
    return paths
