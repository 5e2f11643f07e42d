"""Which process holds a lease, and whether a process of this machine still runs."""

from __future__ import annotations

import os
import platform
import secrets
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

HIDDEN = "?"
"""The start time of a process that the system does not let us see."""


class Holder(BaseModel, frozen=True):
    """Who holds a lease: the content of its file."""

    token: str
    """Identifies this one holding."""
    host: str
    machine: str
    """The machine, its start and its process namespace: a process number names one process within these."""
    pid: int
    started: str
    """When the process was started, since the system uses a process number again."""
    job: str = ""
    restarts: int = 0
    since: str

    def __str__(self) -> str:
        job = f", SLURM job {self.job}" if self.job else ""
        return f"process {self.pid} on {self.host}{job}, since {self.since}"


def this_process() -> Holder:
    """A new holding by this process."""
    name = platform.node()
    job = os.environ.get("SLURM_JOB_ID", "")
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        job = f"{os.environ.get('SLURM_ARRAY_JOB_ID', job)}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return Holder(
        token=secrets.token_hex(8),
        host=name,
        machine=f"{name} {_boot_id()}",
        pid=os.getpid(),
        started=start_time(os.getpid()),
        job=job,
        restarts=int(os.environ.get("SLURM_RESTART_COUNT", "") or 0) if job else 0,
        since=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _boot_id() -> str:
    """This start of this machine, and the namespace of its process numbers (a container may have its own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # not Linux
        return ""


def start_time(pid: int) -> str:
    """When a process of this machine was started; empty where it has ended, HIDDEN where the system does not say."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:  # another user's
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux, or other users' processes are hidden
        return HIDDEN
    return "" if fields[0] in "ZX" else fields[19]  # a zombie writes no more
