"""The trajectories of a store as they are written: a line for each, and the place of its details in the file.

Segments and score files are append-only (`core/files.py`), so that of each file only what was added is read. A file
that shrank starts the store again. Below: the log of a training, and the tokens with loss.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from ratchet.core import files
from ratchet.core.config import RewardsConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question, Score, Trajectory
from ratchet.report.terms import outcomes_of
from ratchet.rewards.selection import strict_reward
from ratchet.rewards.store import current_settings, score_file, score_segments
from ratchet.sampling.store import TrajectoryStore
from ratchet.sampling.work import Work
from ratchet.training.rows import open_rows, split_rows

R = TypeVar("R", bound=BaseModel)


class Replaced(Exception):
    """A file is not the one that was read before."""


@dataclass(frozen=True, slots=True)
class Line:
    """A trajectory without its details, and the place of these."""

    trajectory: Trajectory
    """Without events, conversations, turns and passages."""
    place: files.Line
    outcomes: tuple[str, ...]
    """`outcomes_of` without scores."""
    roles: tuple[str, ...]
    rewritten: int
    """Conversations of trained roles that begin where the chat template wrote earlier turns in another way."""

    def read(self) -> Trajectory:
        """The whole trajectory. UserError where the file was changed."""
        trajectory = self.place.read(Trajectory)
        if trajectory.key != self.trajectory.key:
            raise UserError(f"{self.place.path} was changed while it was read")
        return trajectory


@dataclass
class Tally:
    """The counts of one stage's trajectories by how they ended."""

    title: str
    section: str
    """The section that shows its trajectories, and the arm there."""
    arm: str = ""
    work: Work | None = None
    """The pace of the commands that sampled them; None of an evaluation."""
    planned: int = 0
    total: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(status, error) of every trajectory that did not finish."""
    rewards: list[float] = field(default_factory=list)
    """The rewards of the trajectories that have one, without those of a curriculum, which are led to it."""

    @property
    def mean_reward(self) -> float | None:
        return fmean(self.rewards) if self.rewards else None

    def add(self, line: Line, reward: float | None) -> None:
        trajectory = line.trajectory
        self.total += 1
        self.statuses[trajectory.status] += 1
        if trajectory.status != "finished":
            self.errors[trajectory.status, _first_line(trajectory.error) or "no message"] += 1
        self.rewards += [] if reward is None or trajectory.learners else [reward]


class StoreLines:
    """The lines of one store, as far as it was read."""

    def __init__(
        self, store: TrajectoryStore, scores: Path, questions: Mapping[str, Question], rewards: RewardsConfig
    ) -> None:
        """`scores`: the folder of its scores. `questions`: by id, with the expected answers."""
        self.store, self._scores_folder, self._questions, self._settings = store, scores, questions, rewards
        self._read: dict[Path, files.Line] = {}
        self._lines: dict[str, Line] = {}
        self._failed: dict[str, Line] = {}
        self._score_files: dict[str, Path] = {}
        self._rewards: dict[str, float | None] = {}
        self.scores: dict[str, dict[str, Score]] = {}
        """By trajectory key and name; with raw verdicts where some of them could not be read."""
        self.damaged: list[str] = []
        """The problem of each line that cannot be read."""
        self.keys: tuple[str, ...] = ()
        """The keys that are planned, in order."""
        self._planned: frozenset[str] = frozenset()

    def update(self) -> None:
        """Read what is new. Raises Replaced and UserError."""
        keys = tuple(self.store.keys())
        if keys != self.keys:
            self.keys, self._planned = keys, frozenset(keys)
        for file in self.store.segments:
            for place, trajectory in self._new(file, Trajectory):
                self._add(place, trajectory)
        for name, settings in current_settings(self._scores_folder).items():
            path = score_file(self._scores_folder, name, settings)
            if self._score_files.setdefault(name, path) != path:
                raise Replaced(f"{path}: the score {name} has other settings now")
            stored = score_segments(self._scores_folder, name, settings)
            for _, score in (pair for file in stored for pair in self._new(file, Score)):
                slim = score.model_copy(update={"name": name, **({} if score.unparsed else {"verdicts": ()})})
                self.scores.setdefault(score.trajectory, {})[name] = slim
                self._rewards.pop(score.trajectory, None)

    def _new(self, file: files.SegmentFile, kind: type[R]) -> Iterator[tuple[files.Line, R]]:
        """The complete lines after those that were read, with their records."""
        path, last = file.path, self._read.get(file.path)
        if last is not None and (not path.exists() or path.stat().st_size < last.start + last.length):
            raise Replaced(f"{path} was replaced")
        for line, data in file.lines(last):
            self._read[path] = line
            try:
                yield line, line.parse(data, kind)
            except UserError as error:
                self.damaged.append(str(error))

    def _add(self, place: files.Line, trajectory: Trajectory) -> None:
        lines = self._failed if trajectory.status == "failed" else self._lines
        known = lines.get(trajectory.key)
        if known is not None and (known.place.path, known.place.start) < (place.path, place.start):
            return
        lines[trajectory.key] = Line(
            trajectory.model_copy(update={"events": (), "conversations": (), "turns": (), "passages": ()}),
            place,
            tuple(outcomes_of(self.question(trajectory), trajectory)),
            tuple(sorted({call.role for call in trajectory.model_calls})),
            sum(talk.trainable and talk.rewritten for talk in trajectory.conversations),
        )
        self._rewards.pop(trajectory.key, None)

    def question(self, trajectory: Trajectory) -> Question:
        """Its question; the id in place of the text where the question's file is not there."""
        return self._questions.get(trajectory.question_id) or Question(
            id=trajectory.question_id, text=trajectory.question_id
        )

    def lines(self) -> list[Line]:
        """Each planned trajectory once, as `TrajectoryStore.read` gives them: of several tries the one that counts."""
        good = sorted(self._lines.values(), key=lambda line: (line.place.path, line.place.start))
        failed = (line for key, line in self._failed.items() if key not in self._lines)
        return [line for line in (*good, *failed) if line.trajectory.key in self._planned]

    def reward(self, line: Line) -> float | None:
        """The reward that selection would use, by the scores so far."""
        key = line.trajectory.key
        if key not in self._rewards:
            scores = {(key, name): score for name, score in self.scores.get(key, {}).items()}
            weights, keep = self._settings.weights, self._settings.select.keep_status
            self._rewards[key] = strict_reward(self.question(line.trajectory), line.trajectory, scores, weights, keep)
        return self._rewards[key]


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 200 else line[:199] + "…"


class LogLine(BaseModel):
    """One line of training/log.jsonl."""

    model_config = ConfigDict(extra="ignore")
    step: int
    loss: float | None = None
    dev_loss: float | None = None


@dataclass(frozen=True)
class TrainedRow:
    """One token row of a trajectory that is shown."""

    mask: bytes
    """1 for a token with loss, by position in its conversation."""
    held_out: bool
    """Its question was held out for the dev loss: it was not trained on."""

    def learns(self, start: int, end: int) -> bool:
        """True where all tokens start:end have loss. A row of a single action ends with it."""
        return end <= len(self.mask) and all(self.mask[start:end])

    def merged(self, other: TrainedRow) -> TrainedRow:
        """Both rows of one conversation, where its actions have rows of their own."""
        pairs = zip_longest(self.mask, other.mask, fillvalue=0)
        return TrainedRow(bytes(own | others for own, others in pairs), self.held_out)


TrainedRows = dict[tuple[str, int], TrainedRow]
"""By (trajectory key, conversation)."""


def read_training_log(path: Path) -> tuple[LogLine, ...]:
    """One line a step: loss and dev loss stand on lines of their own. Values that are not finite are skipped."""
    by_step: dict[int, dict[str, Any]] = {}
    for line in files.read_segment(path, LogLine):
        given = line.model_dump(exclude_none=True)
        by_step.setdefault(line.step, {}).update({name: v for name, v in given.items() if math.isfinite(v)})
    return tuple(LogLine(**by_step[step]) for step in sorted(by_step))


def count_rows(path: Path) -> tuple[int, dict[str, int]]:
    """(the number of token rows, that of conversations that gave none, by the reason); 0 where there is no file.
    UserError for one that cannot be read."""
    with open_rows(path) as file:
        if file is None:
            return 0, {}
        return file.metadata.num_rows, json.loads((file.metadata.metadata or {}).get(b"left_out", b"{}"))


def read_trained(
    path: Path, shown: Container[str], question_of: Mapping[str, str], dev_fraction: float, seed: int
) -> TrainedRows:
    """The rows of the trajectories whose keys are in `shown`.

    `question_of`: by trajectory key, the question; without all of them, no row counts as held out. `dev_fraction` and
    `seed`: those of the training, which say which questions it held out.
    """
    trained: TrainedRows = {}
    with open_rows(path) as file:
        if file is None:
            return {}
        keys = file.read(columns=["trajectory"])
        held_out: set[str] = set()
        if all(key in question_of for key in keys["trajectory"].to_pylist()):
            _, dev = split_rows(keys, question_of, dev_fraction, seed)
            held_out = set(dev["trajectory"].to_pylist())
        for batch in file.iter_batches(columns=["trajectory", "conversation", "loss_mask"], batch_size=64):
            key_of, conversation_of, masks = batch.columns
            for i, key in enumerate(key_of.to_pylist()):
                if key in shown:
                    row = TrainedRow(bytes(masks[i].as_py()), key in held_out)
                    place = key, conversation_of[i].as_py()
                    trained[place] = trained[place].merged(row) if place in trained else row
    return trained
