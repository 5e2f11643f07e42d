"""A wall clock that is set forward or back while work runs and is killed.

To everything that compares times, a clock that is set by an hour is a clock that goes on where all files are an hour
older: so the files' times are changed, and what Python tells as the time.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaign import full_disk
from tests.campaign.full_disk import Work
from tests.campaign.kills import KILLS, moment
from tests.campaign.trial import Attack, Trial
from tests.helpers.zygote import shared_zygote

MODULE = "tests.campaign.clocks"
TWO_DAYS = 48 * 3600


def work_on(request: Mapping[str, Any]) -> None:
    """Do request["inner"]; after request["after"] seconds the clock is set by request["by"] seconds."""
    timer = threading.Timer(request["after"], partial(_set_clock, Path(request["folder"]), request["by"]))
    timer.daemon = True
    timer.start()
    module, _, name = request["inner"].partition(":")
    getattr(importlib.import_module(module), name)(request)


def _set_clock(folder: Path, seconds: float) -> None:
    told = time.time
    time.time = lambda: told() + seconds
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            os.utime(path, (status.st_atime - seconds, status.st_mtime - seconds))


@contextmanager
def set_back_and_forth(folder: Path, work: Work) -> Iterator[Trial]:
    """Each of the killed runs, and the last one, has its clock set by up to two days."""
    request = {**work.prepare(folder), "work": f"{MODULE}:work_on"}
    zygote = shared_zygote(MODULE, "tests.campaign.full_disk", *work.modules)
    calm, began = folder / "calm", time.monotonic()
    _, steps = zygote.run(request | {"work": request["inner"], "folder": str(calm)}, "never")
    seconds, wanted = time.monotonic() - began, work.state(calm)

    def trial(dice: random.Random) -> None:
        here = folder / f"{dice.getrandbits(64)}"
        for when in (*(moment(dice, steps, seconds) for _ in range(KILLS)), "never"):
            clock = {"after": dice.uniform(0, seconds), "by": dice.uniform(-TWO_DAYS, TWO_DAYS)}
            zygote.run(request | clock | {"folder": str(here)}, when)
        assert work.state(here) == wanted, "what is there now is not what a calm run leaves"

    yield trial


ATTACKS = (
    Attack("clock jumps while sampling", partial(set_back_and_forth, work=full_disk.SAMPLED), 1, 200),
    Attack("clock jumps while an index is built", partial(set_back_and_forth, work=full_disk.BUILT), 1, 200),
)
