"""The trajectories of a round or an arm, as whoever scores and selects them has them.

A paper-sized round (mRAG's: 8 samples of 1,500 questions) has 12,000 whole records of up to 2 MB in memory each. So an
outline of each is in memory, which has nothing that a reward might read beside it, and the whole record is read from
the disk for each reward that scores it, wherever that is: a plug-in never sees a part of a record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ratchet.core.files import as_line
from ratchet.core.records import Status, Trajectory

RECENT = 16
"""Whole records that stay in memory: several rewards score a trajectory one after the other."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What is in memory of a trajectory."""

    key: str
    question_id: str
    sample: int
    status: Status
    answer: str
    content: str
    """Digest of the whole record: another attempt may have been sampled under its key."""


def outline(trajectory: Trajectory, line: bytes | None = None) -> Outline:
    """The outline of a trajectory. `line`: what the store has of it; default: what it would be."""
    content = hashlib.sha256(as_line(trajectory) if line is None else line).hexdigest()[:32]
    return Outline(
        trajectory.key, trajectory.question_id, trajectory.sample, trajectory.status, trajectory.answer, content
    )


class Trajectories(Mapping[str, Trajectory]):
    """Whole trajectories by key, in their order, each read when it is asked for; `outlines` are in memory."""

    def __init__(self, outlines: Mapping[str, Outline], read: Callable[[str], Trajectory]) -> None:
        """`read`: the whole trajectory of a key."""
        self.outlines = outlines
        self._read = lru_cache(RECENT)(read)

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Trajectories:
        """Those that are in memory already."""
        by_key = {trajectory.key: trajectory for trajectory in trajectories}
        return cls({key: outline(one) for key, one in by_key.items()}, by_key.__getitem__)

    def __getitem__(self, key: str) -> Trajectory:
        return self._read(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.outlines)

    def __len__(self) -> int:
        return len(self.outlines)
