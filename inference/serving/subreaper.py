"""Runs one server or program and ends its whole process tree, however it or the supervisor ends.

    python subreaper.py SUPERVISOR_PID GRACE COMMAND...

vLLM is a tree of processes. Seen with 0.32: when its first process is killed, the engine and its workers live on,
hold their memory, and nothing ends them. So this process runs between the supervisor and the server. As a child
subreaper (prctl(2)) it adopts orphans below it, and it kills the rest of the tree when the server ends, when it gets
SIGTERM, and when the supervisor dies, of which the kernel notifies it with SIGTERM. It exits with the server's status.
The programs of `agents/external` run so too.

It imports nothing of Ratchet, so it starts in milliseconds. It runs on Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

import psutil  # type: ignore[import-untyped]

SET_DEATH_SIGNAL, SET_SUBREAPER = 1, 36
"""PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)."""

libc = ctypes.CDLL(None)


def run_and_reap(supervisor: int, grace: float, command: list[str]) -> int:
    """Run the command under the supervisor with that pid; returns its exit status, 128 + number after a signal."""
    # Blocked and waited for, not handled: a handler could interrupt the cleanup itself.
    signals = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    libc.prctl(SET_DEATH_SIGNAL, signal.SIGTERM)
    libc.prctl(SET_SUBREAPER, 1)
    if os.getppid() != supervisor:  # it died before the lines above
        return 1
    try:
        # A session of its own, so that Ctrl-C on a terminal does not reach it before the command that still asks it.
        server = subprocess.Popen(command, start_new_session=True, preexec_fn=_prepare)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    while server.poll() is None:
        if signal.sigwait(signals) == signal.SIGTERM:
            _terminate(server, grace)
        else:
            _reap_orphans(server.pid)
    _kill_descendants()
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _prepare() -> None:
    """Runs in the server process before its program: it is killed if this process is."""
    libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _reap_orphans(server: int) -> None:
    """Reap orphans that have ended, as init would: until then whoever looks for one finds it."""
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != server:
        os.waitpid(ended.si_pid, 0)


def _terminate(server: subprocess.Popen[bytes], grace: float) -> None:
    os.killpg(server.pid, signal.SIGTERM)  # a shell that waits for its command would not tell it
    try:
        server.wait(grace)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _kill_descendants() -> None:
    """Kill the processes below this one until none is left: orphans become its children."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=1)


if __name__ == "__main__":
    sys.exit(run_and_reap(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
