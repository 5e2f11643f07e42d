"""Trajectories with what is known about them, as the formats of other tools take them: one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from ratchet.config import RewardsConfig
from ratchet.errors import UserError
from ratchet.files import read_record
from ratchet.records import Question, Score, Selection, Trajectory
from report.store_lines import StoreLines
from report.stores import StoredPass

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
    scores: Mapping[str, Score]
    reward: float | None
    kept: bool | None
    """None where nothing was selected yet, or is not selected at all."""


def read_logged(
    stored: StoredPass, questions: Iterable[Question], rewards: RewardsConfig, kept_only: bool = False
) -> tuple[int, Iterator[LoggedTrajectory]]:
    """(how many there are, the planned trajectories that are on disk, in the order of the segments). UserError.

    `questions`: of the store's question set; ids stand for the texts of those that are not there.
    """
    fix = "select again with `python -m rewards`"
    selection = read_record(stored.selection, Selection, fix) if stored.selection else None
    kept = set(selection.kept) if selection else None
    choices = selection.questions if selection else ()
    selected_with = {key: reward for choice in choices for key, reward in choice.rewards.items()}
    store = StoreLines(stored.store, stored.scores, {question.id: question for question in questions}, rewards)
    store.update()
    if store.damaged:
        raise UserError(store.damaged[0])
    lines = [line for line in store.lines() if not kept_only or line.trajectory.key in (kept or ())]

    def read() -> Iterator[LoggedTrajectory]:
        for line in lines:
            key = line.trajectory.key
            reward = selected_with[key] if key in selected_with else store.reward(line)
            is_kept = None if kept is None else key in kept
            yield LoggedTrajectory(
                line.read(), store.question(line.trajectory), store.scores.get(key, {}), reward, is_kept
            )

    return len(lines), read()
