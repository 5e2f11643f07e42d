"""Sampling at width 128 for hours: memory, open files and threads stay what they were."""

from __future__ import annotations

import gc
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.campaign.sampling_work import sample
from tests.campaign.trial import Attack, Trial

WIDTH = 128
MAX_GROWTH = 32 << 20
"""Bytes of memory that may come with time: what an allocator keeps."""


@contextmanager
def soak(folder: Path, seconds: float) -> Iterator[Trial]:
    """Store after store is filled and deleted."""

    def trial(dice: random.Random) -> None:
        until = time.monotonic() + seconds
        found: list[tuple[int, int, int]] = []
        request = {"folder": str(folder / "store"), "questions": WIDTH, "samples": 1, "width": WIDTH, "delay": 0.001}
        while time.monotonic() < until or len(found) < 3:
            sample(request)
            shutil.rmtree(folder / "store")
            gc.collect()
            found.append((_memory(), len(list(Path("/proc/self/fd").iterdir())), threading.active_count()))
        first, last = found[1], found[-1]  # the first one loads and compiles
        assert last[0] - first[0] < MAX_GROWTH, f"memory grew from {first[0]:,} to {last[0]:,} bytes"
        assert last[1:] == first[1:], f"open files and threads: {first[1:]}, then {last[1:]}"

    yield trial


def _memory() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


ATTACKS = (
    Attack(
        f"two hours of sampling at width {WIDTH}",
        "memory grows by less than 32 MiB; files and threads do not grow",
        partial(soak, seconds=7200.0),
        0,
        1,
        9000.0,
    ),
)
