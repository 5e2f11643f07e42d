"""A lease on a file or folder: one writer at a time, also where the writers are on different machines.

The lease is a small file that names its holder. The holder renews it (touches the file) every HEARTBEAT_SECONDS; any
other process must wait or stop, unless the holder has certainly ended:
- a process of this machine that has ended: its lease is taken over at once;
- an earlier start of the same SLURM job, on another machine: at once, since a job's last start is over before the next;
- any other process elsewhere: when the lease was not renewed for STALE_SECONDS, by the file system's clock, and is not
  renewed for WATCH_SECONDS either: that clock may have been set. Clocks of two machines are never compared.
A file with a lease needs no lock of the file system, which network file systems have not, or only on one machine.

A holder that was paused for too long (a suspended machine, a lost network) and finds another's name in its lease, or
no lease, must stop: `check` raises, and the heartbeat interrupts the process. A lease that is deleted while its holder
renews it is put back.

The library for this, flufl.lock 10, is not used: it judges a lock by comparing the file's time with this machine's
clock, and has no heartbeat, so a live holder has to call `refresh`. It knows neither that a holder on this machine was
killed (others wait for the whole lifetime) nor that SLURM has restarted a job.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from pydantic import ValidationError

from ratchet.core.errors import UserError
from ratchet.core.holder import HIDDEN, Holder, start_time, this_process

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
WATCH_SECONDS = 2 * HEARTBEAT_SECONDS
"""How long a taker watches whether the lease of another machine is renewed, although it seems to be stale."""
MAX_PAUSE = 0.5
"""The longest pause in seconds between two tries. The first is short, since most leases are held for milliseconds."""
WAIT_VARIABLE = "RATCHET_LEASE_WAIT"
"""The environment variable with the seconds that a command waits for a lease that another one holds (default 0)."""


class Lease:
    """`with Lease(folder / ".lease", "this run"): ...`; raises UserError where another process holds it."""

    def __init__(self, path: Path, what: str, wait: float | None = None) -> None:
        """`what` names what is written under the lease, for messages. `wait`: seconds to wait for another holder, by
        default those of RATCHET_LEASE_WAIT."""
        self.path, self.what = path, what
        self._wait = _wait_from_environment() if wait is None else wait
        self._token = ""
        self._text = b""
        self._pid = 0
        self._renewed_at = 0.0
        self._is_lost = False

    def acquire(self) -> None:
        """Wait for the lease; UserError where it is not free in time, or the file system refuses."""
        deadline, pause = time.monotonic() + self._wait, 0.005
        while holder := self.try_acquire():
            left = deadline - time.monotonic()
            if left <= 0:
                raise UserError(
                    f"{self.path}: another process is writing {self.what}: {holder}. Wait for it or stop it first "
                    f"({WAIT_VARIABLE}=SECONDS in the environment waits). Only if it has certainly ended, delete this "
                    "file."
                )
            time.sleep(min(pause, left))
            if pause < MAX_PAUSE <= 2 * pause:
                print(f"waiting for {self.what}, which is held by {holder}", file=sys.stderr, flush=True)
            pause = min(2 * pause, MAX_PAUSE)

    def try_acquire(self) -> Holder | None:
        """Take the lease if it is free: None if it is ours now, else its holder. UserError if it cannot be written."""
        mine = this_process()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            holder = _take(self.path, self.path, mine)
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot write ({error.strerror or error}); make room or fix the folder's "
                "permissions, then run the same command again"
            ) from error
        if holder is None:
            self._token, self._text = mine.token, mine.model_dump_json().encode()
            self._pid, self._renewed_at, self._is_lost = mine.pid, _clock(), False
            _heartbeat.add(self)
            _sweep(self.path)
        return holder

    def check(self) -> None:
        """Raise UserError where the lease is no longer ours. It costs next to nothing: call it before every write."""
        if not self._is_lost and _clock() - self._renewed_at >= WATCH_SECONDS:  # this process was paused
            self.renew()
        if self._is_lost:
            raise UserError(self.lost)

    @property
    def lost(self) -> str:
        """Why this process must stop writing; empty while it may write."""
        if not self._is_lost:
            return ""
        return (
            f"{self.path}: this process was paused for too long and the lease on {self.what} went to "
            f"{_read(self.path) or 'another one'}. It stops here; what it finished before is kept."
        )

    def renew(self) -> None:
        """Touch the file, or note that the lease is lost."""
        now = _clock()
        try:
            holder = _read(self.path)
            if holder is None and self.path.parent.exists():
                if now - self._renewed_at >= WATCH_SECONDS:  # long enough for another to take it, write and release it
                    self._is_lost = True
                    return
                if not _create(self.path, self._text):
                    holder = _read(self.path)  # deleted, and taken by another before we could put it back
            if holder is None or holder.token == self._token:
                self._renewed_at = now
                os.utime(self.path)  # not there where the whole folder was deleted: then there is nothing to keep
            else:
                self._is_lost = True
        except OSError:
            pass  # the file system is not available; a later renewal decides

    def release(self) -> None:
        """Delete the file, if it is still ours."""
        if not self._token or os.getpid() != self._pid:  # a forked child holds nothing
            return
        _heartbeat.remove(self)
        holder = _read(self.path)
        if holder is not None and holder.token == self._token:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._token = ""

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def holder_of(path: Path) -> Holder | None:
    """The holder of a lease, without taking it; None where there is none, or it has certainly ended."""
    holder = _read(path)
    return None if holder is None or _has_ended(path, holder, this_process()) else holder


class _Heartbeat:
    """One thread that renews all leases of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start empty; a forked child does so too, since it has neither the thread nor the leases."""
        self.held: list[Lease] = []
        self.lost = ""
        self.used = False
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, lease: Lease) -> None:
        with self._guard:
            self.held, self.used = [*self.held, lease], True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
                self._thread.start()

    def remove(self, lease: Lease) -> None:
        with self._guard:
            self.held = [other for other in self.held if other is not lease]

    def _run(self) -> None:
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            for lease in self.held:
                lease.renew()
            self.lost = next((lease.lost for lease in self.held if lease.lost), "")
            if self.lost:
                os.kill(os.getpid(), signal.SIGTERM)  # run_command says why
                return


_heartbeat = _Heartbeat()
os.register_at_fork(after_in_child=_heartbeat.reset)


def lost_lease() -> str:
    """Why the heartbeat interrupted this process; empty while all its leases are its own."""
    return _heartbeat.lost


def check_leases() -> None:
    """`Lease.check` of every lease of this process: whatever gives a file its name calls it."""
    for lease in _heartbeat.held:
        lease.check()


def has_held_lease() -> bool:
    """Whether this process has written anything under a lease, and so has work that the same command resumes."""
    return _heartbeat.used


def _clock() -> float:
    """Seconds that also count while the machine is suspended, where the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _wait_from_environment() -> float:
    text = os.environ.get(WAIT_VARIABLE, "") or "0"
    try:
        return max(0.0, float(text))
    except ValueError as error:
        raise UserError(f"{WAIT_VARIABLE}={text}: expected a number of seconds") from error


def _has_ended(path: Path, holder: Holder, mine: Holder, watch: bool = False) -> bool:
    """Whether the holder has certainly ended; see the top of this file. `watch`: also wait and see that a stale lease
    is not renewed."""
    if holder.machine == mine.machine:
        return start_time(holder.pid) not in (holder.started, HIDDEN)
    if mine.job and holder.job == mine.job and holder.restarts < mine.restarts:
        return True
    if abs(_age(path)) <= STALE_SECONDS:  # it is below 0 once the clock of the file system was set back
        return False
    return not (watch and _is_renewed(path))


def _is_renewed(path: Path) -> bool:
    """Whether a lease that seems to be stale is renewed: then the clock of its file system was set forward or back."""
    before = _touched(path)
    time.sleep(WATCH_SECONDS)
    return _touched(path) != before


def _touched(path: Path) -> float | None:
    """When a lease was renewed last; None where there is no lease."""
    try:
        with path.open("rb") as file:  # opened, because a network file system's cached attributes may be old
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None


def _age(path: Path) -> float:
    """Seconds since the file was touched, by the clock of its file system; 0 where there is no file."""
    probe = path.with_name(f"{path.name}.now.{secrets.token_hex(4)}")
    try:
        with probe.open("xb") as file:
            os.utime(file.fileno())
            now = os.fstat(file.fileno()).st_mtime
        touched = _touched(path)
        return 0.0 if touched is None else now - touched
    finally:
        probe.unlink(missing_ok=True)


def _take(path: Path, lease: Path, mine: Holder) -> Holder | None:
    """None if `path`, which is the lease or a claim on it, holds our record now, else its holder.

    Of several processes that take a lease over from a dead holder, the one that creates the claim on it goes on. A
    claim is a lease itself: where its holder was killed as well, it is taken over in the same way. It becomes the lease
    by being renamed, so that a kill between any two steps leaves nothing that the next process does not clear at once.
    """
    while not _create(path, mine.model_dump_json().encode()):
        holder = _read(path)
        if holder is None:  # released in this moment
            continue
        if not _has_ended(path, holder, mine, watch=True):
            return holder
        claim = lease.with_name(f"{lease.name}.{holder.token}")
        if claimer := _take(claim, lease, mine):
            return claimer
        now = _read(path)
        if now is not None and now.token == holder.token:
            claim.replace(path)
            return None
        claim.unlink()  # another took it over before our claim: look again
    return None


def _create(path: Path, data: bytes) -> bool:
    """Create a file together with its content; False where it exists."""
    if path.exists():
        return False
    try:
        with _unnamed_file(path, data) as source:
            # With a folder's descriptor Python follows the link in /proc; without one it does not.
            os.link(source, path, src_dir_fd=0)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        return _create_without_links(path, data)
    return True


@contextlib.contextmanager
def _unnamed_file(path: Path, data: bytes) -> Iterator[str]:
    """The absolute path of a file with this content that is gone after the block; it has no name where possible."""
    try:
        file, name = os.open(path.parent, os.O_WRONLY | os.O_TMPFILE, 0o644), None
    except (AttributeError, OSError):  # not Linux, or a network file system
        name = path.absolute().with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(file, data)
        yield str(name or f"/proc/self/fd/{file}")
    finally:
        os.close(file)
        if name:
            name.unlink()


def _create_without_links(path: Path, data: bytes) -> bool:
    """For file systems without hard links: a reader may find the file before its content."""
    try:
        with path.open("xb", buffering=0) as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


def _sweep(path: Path) -> None:
    """Delete what killed processes left beside our lease; what another one is using is younger."""
    with contextlib.suppress(OSError):
        oldest = path.stat().st_mtime - STALE_SECONDS
        for left in path.parent.iterdir():
            if left.name.startswith(f"{path.name}.") and left.stat().st_mtime < oldest:
                left.unlink()


def _read(path: Path) -> Holder | None:
    """The holder that a lease names; None where there is no lease."""
    try:
        return Holder.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:  # just being written, or by a machine that went down
        return Holder(token="unread", host="an unknown machine", machine="", pid=0, started="", since="?")
