"""Trajectories with what is known about them, as the formats of other tools take them: one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from ratchet.config import RewardsConfig
from ratchet.files import read_record, read_segment
from ratchet.records import Question, Score, Selection, Trajectory
from report.stores import StoredPass
from rewards.selection import strict_reward
from rewards.store import current_settings, score_file

T = TypeVar("T")


def batches(items: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """`size` items at a time, and what is left."""
    left = iter(items)
    while batch := tuple(islice(left, size)):
        yield batch


@dataclass(frozen=True)
class LoggedTrajectory:
    """A trajectory with its question, its scores by name, and what selection made of it."""

    trajectory: Trajectory
    question: Question
    scores: dict[str, Score]
    """Without the raw verdicts."""
    reward: float | None
    kept: bool | None
    """None where nothing was selected yet, or is not selected at all."""


class PassLog:
    """The trajectories of one store; its scores are in memory, the trajectories are read one by one."""

    def __init__(
        self, stored: StoredPass, questions: Iterable[Question], rewards: RewardsConfig, kept_only: bool = False
    ) -> None:
        """`questions`: of the store's question set; ids stand for the texts of those that are not there. UserError."""
        fix = "select again with `python -m rewards`"
        selection = read_record(stored.selection, Selection, fix) if stored.selection else None
        self._stored, self._rewards = stored, rewards
        self._kept = set(selection.kept) if selection else None
        choices = selection.questions if selection else ()
        self._selected_with = {key: reward for choice in choices for key, reward in choice.rewards.items()}
        planned = stored.store.keys()
        self._keys = [key for key in planned if not kept_only or key in (self._kept or ())]
        self._questions = {question.id: question for question in questions}
        self._scores: dict[str, dict[str, Score]] = {}
        for name, settings in current_settings(stored.scores).items():
            for score in read_segment(score_file(stored.scores, name, settings), Score):
                slim = score.model_copy(update={"name": name, "verdicts": ()})
                self._scores.setdefault(score.trajectory, {})[name] = slim

    @property
    def total(self) -> int:
        """Trajectories that will be read, as far as they are on disk."""
        return len(self._keys)

    def read(self) -> Iterator[LoggedTrajectory]:
        """The planned trajectories that are on disk, in the order of the segments. Raises UserError."""
        weights, keep = self._rewards.weights, self._rewards.select.keep_status
        for trajectory in self._stored.store.read(self._keys):
            key, identity = trajectory.key, trajectory.question_id
            question = self._questions.get(identity) or Question(id=identity, text=identity)
            scores = self._scores.get(key, {})
            if key in self._selected_with:
                reward = self._selected_with[key]
            else:
                given = {(key, name): score for name, score in scores.items()}
                reward = strict_reward(question, trajectory, given, weights, keep)
            kept = None if self._kept is None else key in self._kept
            yield LoggedTrajectory(trajectory, question, scores, reward, kept)
