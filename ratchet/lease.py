"""A lease on a file or folder: one writer at a time, also where the writers are on different machines.

The lease is a small file that says who holds it. Its holder touches it every BEAT seconds; who finds it must wait or go
away, unless the holder is certainly gone:
- a process of this machine that has ended: taken over at once;
- an earlier start of the same SLURM job, on another machine: at once, a job's last start is over before the next;
- any other process elsewhere: when the lease was not touched for STALE seconds, by the file system's clock. Clocks of
  two machines are never compared.
A file with a lease needs no lock of the file system, which network file systems have not, or only on one machine.

A holder that was away for too long (a paused machine, a lost network) and finds another's name in its lease must stop:
`check` raises, and the beat interrupts the process. A lease that was deleted is put back.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from pydantic import BaseModel, ValidationError

from ratchet.errors import UserError

BEAT = 5.0
STALE = 60.0
UNSEEN = "?"
"""For what the system does not let us see."""
WAIT_VARIABLE = "RATCHET_LEASE_WAIT"
"""Seconds for which a command waits for a lease that another one holds (default 0)."""


class Holder(BaseModel, frozen=True):
    """Who holds a lease: the content of its file."""

    token: str
    """Of this one holding."""
    host: str
    machine: str
    """Within which a process number means one process."""
    pid: int
    started: str
    """When the process was started: a number is used again for another process."""
    job: str = ""
    restarts: int = 0
    since: str

    def __str__(self) -> str:
        job = f", SLURM job {self.job}" if self.job else ""
        return f"process {self.pid} on {self.host}{job}, since {self.since}"


class Lease:
    """`with Lease(folder / ".lease", "this run"): ...`; UserError where another process holds it after the wait."""

    def __init__(self, path: Path, what: str, wait: float | None = None) -> None:
        """`what` is written under it, for messages. `wait`: seconds, by default from the environment."""
        self.path, self.what = path, what
        self._wait = _default_wait() if wait is None else wait
        self._token = ""
        self._text = b""
        self._pid = 0
        self._seen = 0.0
        self._is_lost = False

    def take(self) -> None:
        """UserError, also where the file system refuses."""
        until = time.monotonic() + self._wait
        is_told = False
        while holder := self.try_take():
            left = until - time.monotonic()
            if left <= 0:
                raise UserError(
                    f"{self.path}: another process is writing {self.what}: {holder}. Wait for it or stop it first "
                    f"({WAIT_VARIABLE}=SECONDS in the environment waits). Only if it is certainly gone, delete this "
                    "file."
                )
            if not is_told:
                print(f"waiting for {self.what}, which is held by {holder}", file=sys.stderr, flush=True)
                is_told = True
            time.sleep(min(0.5, left))

    def try_take(self) -> Holder | None:
        """Without a wait. None: it is ours; else who holds it. UserError where the file system refuses."""
        mine = _this_process()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            holder = self._claim(mine)
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot write ({error.strerror or error}); make room or mend the folder's "
                "permissions, then run the same command again"
            ) from error
        if holder is None:
            self._token, self._text = mine.token, mine.model_dump_json().encode()
            self._pid, self._seen, self._is_lost = mine.pid, time.monotonic(), False
            _heart.add(self)
        return holder

    def _claim(self, mine: Holder) -> Holder | None:
        """None: it is ours now; else who holds it."""
        text = mine.model_dump_json().encode()
        if _create(self.path, text):
            return None
        holder = _read(self.path)
        if holder is None:  # released in this moment
            return self._claim(mine)
        if not _is_gone(self.path, holder, mine):
            return holder
        # Of several takers one gets past this file, and only while the lease is still the one that it judged.
        claim = self.path.with_name(f"{self.path.name}.{holder.token}")
        if not _create(claim, b""):
            if _age(claim) > STALE:  # a taker was killed within these few lines
                claim.unlink(missing_ok=True)
            return holder
        try:
            now = _read(self.path)
            if now is None or now.token != holder.token:
                return now or holder
            fresh = self.path.with_name(f"{self.path.name}.{mine.token}")
            _create(fresh, text)
            fresh.replace(self.path)
        finally:
            claim.unlink(missing_ok=True)
        return None

    def check(self) -> None:
        """Cheap; before every write. UserError where the lease is no longer ours."""
        if not self._is_lost and time.monotonic() - self._seen > STALE / 2:  # we were paused: look before writing on
            self.beat()
        if self._is_lost:
            raise UserError(self.lost)

    @property
    def lost(self) -> str:
        """Why this process must not write on; empty while it may."""
        if not self._is_lost:
            return ""
        return (
            f"{self.path}: this process was away for too long and the lease on {self.what} went to "
            f"{_read(self.path) or 'another one'}. It stops here; what it finished before is kept."
        )

    def beat(self) -> None:
        """Touch the lease; note it when it is lost."""
        now = time.monotonic()
        try:
            holder = _read(self.path)
            if holder is None and self.path.parent.exists() and not _create(self.path, self._text):
                holder = _read(self.path)  # deleted, and taken by another before we could put it back
            if holder is None or holder.token == self._token:
                self._seen = now
                os.utime(self.path)  # not there where the whole folder was deleted: then there is nothing to keep
            else:
                self._is_lost = True
        except OSError:
            pass  # the file system is away; a beat that comes through will tell

    def release(self) -> None:
        if not self._token or os.getpid() != self._pid:  # a forked child holds nothing
            return
        _heart.remove(self)
        holder = _read(self.path)
        if holder is not None and holder.token == self._token:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._token = ""

    def __enter__(self) -> Lease:
        self.take()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def held_by(path: Path) -> Holder | None:
    """Who holds a lease; None where nobody does, or somebody who is certainly gone. Takes nothing."""
    holder = _read(path)
    return None if holder is None or _is_gone(path, holder, _this_process()) else holder


class _Heart:
    """One thread that touches all leases of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Also in a forked child, which has neither the thread nor the leases."""
        self.held: list[Lease] = []
        self.lost = ""
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, lease: Lease) -> None:
        with self._guard:
            self.held = [*self.held, lease]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
                self._thread.start()

    def remove(self, lease: Lease) -> None:
        with self._guard:
            self.held = [other for other in self.held if other is not lease]

    def _run(self) -> None:
        while True:
            time.sleep(BEAT)
            for lease in self.held:
                lease.beat()
            self.lost = next((lease.lost for lease in self.held if lease.lost), "")
            if self.lost:
                os.kill(os.getpid(), signal.SIGTERM)  # run_command says why
                return


_heart = _Heart()
os.register_at_fork(after_in_child=_heart.reset)


def lost_lease() -> str:
    """Why this process was interrupted; empty while all its leases are its own."""
    return _heart.lost


def _default_wait() -> float:
    text = os.environ.get(WAIT_VARIABLE, "") or "0"
    try:
        return max(0.0, float(text))
    except ValueError as error:
        raise UserError(f"{WAIT_VARIABLE}={text}: expected a number of seconds") from error


def _this_process() -> Holder:
    name = platform.node()
    job = os.environ.get("SLURM_JOB_ID", "")
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        job = f"{os.environ.get('SLURM_ARRAY_JOB_ID', job)}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return Holder(
        token=secrets.token_hex(8),
        host=name,
        machine=f"{name} {_boot()}",
        pid=os.getpid(),
        started=_started(os.getpid()),
        job=job,
        restarts=int(os.environ.get("SLURM_RESTART_COUNT", "") or 0) if job else 0,
        since=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _boot() -> str:
    """This start of this machine, and which process numbers are seen from here (a container may have its own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # not Linux
        return ""


def _started(pid: int) -> str:
    """When a process of this machine was started; empty where it has ended, UNSEEN where that is all we may know."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:  # another user's
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux, or other users' processes are hidden
        return UNSEEN
    return "" if fields[0] in "ZX" else fields[19]  # a zombie writes no more


def _is_gone(path: Path, holder: Holder, mine: Holder) -> bool:
    """Whether the holder certainly writes no more; see the top of this file."""
    if holder.machine == mine.machine:
        return _started(holder.pid) not in (holder.started, UNSEEN)
    if mine.job and holder.job == mine.job and holder.restarts < mine.restarts:
        return True
    return _age(path) > STALE


def _age(path: Path) -> float:
    """Seconds since the file was touched, by the clock of its file system; 0 where it is gone."""
    probe = path.with_name(f"{path.name}.now.{secrets.token_hex(4)}")
    try:
        with probe.open("xb") as file:
            os.utime(file.fileno())
            now = os.fstat(file.fileno()).st_mtime
        with path.open("rb") as file:  # opened: what a network file system remembers of it may be old
            return now - os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        probe.unlink(missing_ok=True)


def _create(path: Path, data: bytes) -> bool:
    """Make a file that was not there; False where it was."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(file, data)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(file)
    return True


def _read(path: Path) -> Holder | None:
    """None where there is no lease."""
    try:
        return Holder.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:  # just being written, or by a machine that went down
        return Holder(token="unread", host="an unknown machine", machine="", pid=0, started="", since="?")
