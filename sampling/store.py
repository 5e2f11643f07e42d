"""Reading a folder of trajectories, which several writers may have filled: each one once, the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ratchet.files import read_segments
from ratchet.records import Trajectory


def read_trajectories(folder: Path) -> Iterator[Trajectory]:
    """Every key once. A cluster starts some jobs twice, so two segments may hold one key: the first counts.

    A failed trajectory is one only where no try of its key went better; those come last.
    """
    finished: set[str] = set()
    failed: dict[str, Trajectory] = {}
    for trajectory in read_segments(folder, Trajectory):
        if trajectory.key in finished:
            continue
        if trajectory.status == "failed":
            failed.setdefault(trajectory.key, trajectory)
            continue
        finished.add(trajectory.key)
        yield trajectory
    yield from (trajectory for key, trajectory in failed.items() if key not in finished)
