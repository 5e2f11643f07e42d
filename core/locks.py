"""One writer at a time: a lock beside each writer's file, and one for each stage of a run.

The lock is the operating system's own (flock, through filelock). It ends with its process, however that ends, also on
another machine where the file system is shared. The locked file says who holds it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from ratchet.core.errors import UserError

WAIT, WAIT_OF_JOB = 0.2, 86_400.0
"""Seconds to wait for another writer: long enough for one that only looks (`holder_of`), and in a SLURM job for another
start of the same job, since SLURM starts some jobs twice and a failure of the second would count as the job's."""
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)


class Lock:
    """`with Lock(folder / ".lock", "this run"): ...`; raises UserError where another process holds it."""

    was_held = False
    """True if this process has held any lock, and so has work that the same command resumes."""
    _is_told = False

    def __init__(self, path: Path, what: str, wait: float | None = None) -> None:
        """`what` names what is written under the lock, for messages. `wait`: seconds to wait for another holder."""
        self.path, self.what = path.absolute(), what
        self._wait = wait if wait is not None else WAIT_OF_JOB if "SLURM_JOB_ID" in os.environ else WAIT
        self._lock = _file_lock(path, thread_local=False, on_acquired=_sign)

    def acquire(self) -> None:
        holder = self.try_acquire(min(self._wait, WAIT))
        if holder and self._wait > WAIT:
            print(f"waiting for {self.what}, which is held by {holder}", file=sys.stderr, flush=True)
            holder = self.try_acquire(self._wait)
        if holder:
            raise UserError(
                f"{self.path}: another process is writing {self.what}: {holder}. Wait for it or stop it first"
            )

    def try_acquire(self, wait: float = 0.0) -> str:
        """Take the lock if it is free within `wait` seconds: '' if it is ours now, else its holder."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=wait)
        except Timeout:
            return _read(self.path)
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
                raise disk_error(self.path, error) from error
            if not Lock._is_told:
                print(f"{self.path}: this file system has no locks: run one command at a time on it", file=sys.stderr)
            Lock._is_told = True
        Lock.was_held = True
        return ""

    @property
    def is_held(self) -> bool:
        """False in a forked child, which has none of its parent's locks."""
        return self._lock.is_locked

    def release(self) -> None:
        """Delete the file while it is still locked (who waits for it then locks a new one), and free the lock."""
        if self.is_held:
            with contextlib.suppress(OSError):
                self.path.unlink()
            self._lock.release()

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def holder_of(path: Path) -> str:
    """Name the lock's holder without taking the lock; '' where nobody holds it, or this user may not ask."""
    if not path.exists():
        return ""
    try:
        with _file_lock(path):
            return ""
    except Timeout:
        return _read(path)
    except (OSError, NotImplementedError):
        return ""


def _file_lock(path: Path, **options: Any) -> BaseFileLock:
    return FileLock(path.absolute(), timeout=0, fallback_to_soft=False, **options)


def _sign(descriptor: int) -> None:
    """Write the holder into the locked file."""
    number, task = (os.environ.get(f"SLURM_{name}", "") for name in ("JOB_ID", "ARRAY_TASK_ID"))
    job = f", SLURM job {number}{task and f' (task {task})'}" if number else ""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    with contextlib.suppress(OSError):  # a full disk: nothing but this is written into the file
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}{job}, since {since}".encode(), 0)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")[:200] or "a process that did not say which"
    return "a process that has just ended"


def disk_error(path: Path, error: BaseException) -> UserError:
    """Return the error of a file that cannot be written, with what to do."""
    reason = getattr(error, "strerror", None) or error
    return UserError(
        f"{path}: cannot write ({reason}). What was finished before is kept: make room or fix the folder's "
        "permissions, then run the same command again."
    )
