"""Trajectories with what is known about them, as the formats of other tools take them: one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from evaluation.question_sets import split_of
from questions.load import load_questions
from ratchet.config import Config
from ratchet.errors import UserError
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


@dataclass
class PassLog:
    """The trajectories of one store; the questions and scores are in memory, the trajectories are read one by one."""

    config: Config
    one: StoredPass
    kept_only: bool = False
    total: int = field(init=False)
    """Trajectories that will be read, as far as they are on disk."""

    def __post_init__(self) -> None:
        """Raises UserError."""
        fix = "select again with `python -m rewards`"
        selection = read_record(self.one.selection, Selection, fix) if self.one.selection else None
        self._kept = set(selection.kept) if selection else None
        choices = selection.questions if selection else ()
        self._rewards = {key: reward for choice in choices for key, reward in choice.rewards.items()}
        planned = self.one.store.keys()
        self._keys = [key for key in planned if not self.kept_only or key in (self._kept or ())]
        self.total = len(self._keys)
        self._questions: dict[str, Question] = {}
        try:
            found = load_questions(
                split_of(self.config.questions, self.config.evaluation.benchmarks, self.one.split), self.config.seed
            )
            self._questions = {question.id: question for question in found}
        except UserError:  # the files are on another machine: ids stand for the texts
            pass
        self._scores: dict[str, dict[str, Score]] = {}
        for name, settings in current_settings(self.one.scores).items():
            for score in read_segment(score_file(self.one.scores, name, settings), Score):
                slim = score.model_copy(update={"name": name, "verdicts": ()})
                self._scores.setdefault(score.trajectory, {})[name] = slim

    def read(self) -> Iterator[LoggedTrajectory]:
        """The planned trajectories that are on disk, in the order of the segments. Raises UserError."""
        weights = {str(name): weight for name, weight in self.config.rewards.weights.items()}
        keep = self.config.rewards.select.keep_status
        for trajectory in self.one.store.read(self._keys):
            key, identity = trajectory.key, trajectory.question_id
            question = self._questions.get(identity) or Question(id=identity, text=identity)
            scores = self._scores.get(key, {})
            if key in self._rewards:
                reward = self._rewards[key]
            else:
                given = {(key, name): score for name, score in scores.items()}
                reward = strict_reward(question, trajectory, given, weights, keep)
            kept = None if self._kept is None else key in self._kept
            yield LoggedTrajectory(trajectory, question, scores, reward, kept)
