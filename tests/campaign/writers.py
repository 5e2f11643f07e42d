"""Two writers of one folder on two machines, of which one is suspended until the other has its lease.

A machine is what a lease takes for one: these two processes give it different names. Their leases are stale soon.
"""

from __future__ import annotations

import importlib
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ratchet.core import holder, lease
from ratchet.core.errors import UserError
from tests.campaign import export_kills, full_disk
from tests.campaign.full_disk import Work
from tests.campaign.trial import Attack, Trial
from tests.helpers.zygote import shared_zygote

MODULE = "tests.campaign.writers"
STALE, BEAT = 0.4, 0.1
REFUSED = 3


def write_twice(request: Mapping[str, Any]) -> None:
    """Do request["inner"], suspend it after request["after"] seconds until its lease is stale, do it on the other
    machine, and let the first go on."""
    lease.STALE_SECONDS, lease.HEARTBEAT_SECONDS, lease.WATCH_SECONDS = STALE, BEAT, 2 * BEAT
    first = _start(request, "one")
    time.sleep(request["after"])
    os.kill(first, signal.SIGSTOP)
    time.sleep(2 * STALE)
    second = _start(request, "another")
    time.sleep(request["between"])
    os.kill(first, signal.SIGCONT)
    ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in (first, second)]
    Path(request["said"]).write_text(" ".join(map(str, ends)))


def _start(request: Mapping[str, Any], machine: str) -> int:
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        holder._boot_id = lambda: machine
        module, _, name = request["inner"].partition(":")
        getattr(importlib.import_module(module), name)(request)
        status = 0
    except UserError as error:
        status = REFUSED if re.search("paused for too long|another process|was moved away", str(error)) else 1
        print(error, file=sys.stderr)
    finally:
        os._exit(status)


@contextmanager
def suspended(folder: Path, work: Work) -> Iterator[Trial]:
    """The suspended writer ends, refused or by the signal of its heartbeat, or had finished; the other one finishes."""
    request = {**work.prepare(folder), "said": str(folder / "said")}
    zygote = shared_zygote(MODULE, "tests.campaign.full_disk", *work.modules)
    calm, began = folder / "calm", time.monotonic()
    zygote.run(request | {"work": request["inner"], "folder": str(calm)}, "never")
    seconds, wanted = time.monotonic() - began, work.state(calm)

    def trial(dice: random.Random) -> None:
        here = folder / f"{dice.getrandbits(64)}"
        asked = {"folder": str(here), "after": dice.uniform(0, seconds), "between": dice.uniform(0, 1)}
        signalled, _ = zygote.run(request | asked | {"work": f"{MODULE}:write_twice"}, "never")
        assert signalled == 0
        first, second = map(int, (folder / "said").read_text().split())
        assert first in (0, REFUSED, -signal.SIGTERM), f"the suspended writer ended with {first}"
        assert second in (0, REFUSED), f"the second writer ended with {second}"
        zygote.run(request | {"work": request["inner"], "folder": str(here)}, "never")
        assert work.state(here) == wanted, "what is there now is not what a calm run leaves"

    yield trial


def _attack(name: str, work: Work, fast: int, whole: int, seconds: float = 30.0, mark: str = "server") -> Attack:
    return Attack(f"suspended writers {name}", partial(suspended, work=work), fast, whole, seconds, mark)


ATTACKS = (
    _attack("while sampling", full_disk.SAMPLED, 1, 200),
    _attack("while an index is built", full_disk.BUILT, 1, 200),
    _attack("of exports", export_kills.EXPORTED, 0, 50, 120.0, "slow"),
)
