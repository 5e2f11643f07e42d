"""A request to stop: SIGTERM, as clusters send it, or SIGUSR1. Training saves a checkpoint after the step and ends."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Within the block the first of SIGNALS is remembered; when the block ends, the process stops as for a SIGTERM.

    `commands.arguments` turns that into the exit status 143. Further signals change nothing, since SLURM sends some
    more than once; Ctrl-C and SIGKILL end training at once, and it resumes from the checkpoint before.
    """

    def __init__(self) -> None:
        self.received = False
        self._before: dict[signal.Signals, Any] = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            name = signal.Signals(number).name
            print(f"\n{name}: training ends after this step, with a checkpoint", file=sys.stderr, flush=True)
        self.received = True

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python handles signals there alone
            self._before = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._restore()
        if self.received and kind is None:
            signal.raise_signal(signal.SIGTERM)

    def end(self) -> None:
        """Stop the process within the block, where there is nothing to save first."""
        self._restore()
        signal.raise_signal(signal.SIGTERM)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
