"""What the tables of stored trajectories read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.records import Question, Trajectory
from ratchet.core.runfolder import RoundFolder
from ratchet.evaluation.arm_folders import question_set, read_arms
from ratchet.evaluation.arms import arm_trajectories
from ratchet.sampling.store import TrajectoryStore


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


def stored_set(config: Config, folder: RoundFolder, split: str) -> StoredSet:
    """What a round stored on a question set. Raises UserError where it was not evaluated on it."""
    stores = read_arms(folder, split)
    if not stores:
        raise UserError(f"{split}: no method was run yet; run `ratchet evaluate --config ... --split {split}`")
    return StoredSet(split, question_set(config, split).questions, stores)
