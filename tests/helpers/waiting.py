"""Waiting for what another process or thread does."""

import subprocess
import time
from collections.abc import Callable
from typing import Any


def wait_for(condition: Callable[[], Any], seconds: float = 300.0, process: subprocess.Popen[Any] | None = None) -> Any:
    """What `condition` gives as soon as that is true; an error once the time is over, or when the process ends.

    The time is for what hangs: it passes on no machine that is merely slow or busy. Looking takes a tenth of a core at
    the most, and comes once a second at the least."""
    deadline, looked = time.monotonic() + seconds, time.thread_time()
    while not (found := condition()):
        assert process is None or process.poll() is None, f"ended with status {process.returncode} too early"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(min(1.0, max(0.01, 10 * (time.thread_time() - looked))))
        looked = time.thread_time()
    return found
