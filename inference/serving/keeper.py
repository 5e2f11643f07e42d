"""Runs one server and leaves nothing of it behind, however it or the supervisor ends.

    python keeper.py SUPERVISOR_PID GRACE COMMAND...

vLLM is a tree of processes. Seen with 0.32: when its first process is killed, the engine and its workers live on,
hold their memory, and nobody ends them. So this process stands between the supervisor and the server: it adopts
what is orphaned below it, and ends the rest of the tree when the server ends, when it is told to stop (SIGTERM), and
when the supervisor dies, which the kernel tells it as a SIGTERM as well. It exits with the server's status.

Only the standard library, and no import of ours: it starts in a blink, and runs on Linux alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SET_DEATH_SIGNAL, SET_SUBREAPER = 1, 36
"""PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)."""

libc = ctypes.CDLL(None)


def keep(supervisor: int, grace: float, command: list[str]) -> int:
    # Blocked and waited for, not handled: a handler could interrupt the clearing up itself.
    waited = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    libc.prctl(SET_DEATH_SIGNAL, signal.SIGTERM)
    libc.prctl(SET_SUBREAPER, 1)
    if os.getppid() != supervisor:  # it died before the lines above
        return 1
    try:
        # A session of its own, so that Ctrl-C on a terminal does not reach it before the command that still asks it.
        server = subprocess.Popen(command, start_new_session=True, preexec_fn=_prepare)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        return 127
    while server.poll() is None:
        if signal.sigwait(waited) == signal.SIGTERM:
            _end(server, grace)
    _kill_rest()
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _prepare() -> None:
    """In the server before it begins: it dies with this process, should somebody kill that."""
    libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _end(server: subprocess.Popen[bytes], grace: float) -> None:
    server.terminate()
    try:
        server.wait(grace)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _kill_rest() -> None:
    """Kill what is left below this process, until nothing is: orphans become its children."""
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.02)
        except ChildProcessError:
            return


def _children() -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # "pid (name) state parent ...", where the name may hold anything
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(stat.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
