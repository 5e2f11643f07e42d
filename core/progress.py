"""One line of progress: done, rate, time left, and further counts. On a terminal it is redrawn in place; elsewhere a
plain line is printed every `every` seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

SLOW = 3600.0
"""Seconds left above which a stage prints its advice."""
FIRST_LOOK = 120.0
"""Seconds after which the time left is estimated, even where little has finished."""


def duration(seconds: float) -> str:
    """'41s', '3m05s', '2h10m'."""
    total = round(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    return f"{total // 3600}h{total % 3600 // 60:02d}m"


class Progress:
    """A line of progress for one stage; `with Progress(...) as progress` finishes it."""

    def __init__(
        self,
        title: str,
        total: int | None,
        done: int = 0,
        every: float = 10.0,
        out: TextIO | None = None,
        advice: str = "",
        in_flight: int = 1,
    ) -> None:
        """`total` is None where it is not known before the end. `advice` says how to shorten the stage, and is printed
        once where that will take more than an hour; `in_flight` pieces of work are done at the same time."""
        self.title, self.total, self.done = title, total, done
        self.note = ""
        self._advice, self._in_flight = advice, in_flight
        self._resumed = done
        self._out = out or sys.stderr
        self._live = self._out.isatty()
        self._line_start = "\r\x1b[2K" if self._live else ""
        self._every = 0.2 if self._live else every
        self._began = time.monotonic()
        self._shown = self._began - (self._every if self._live else 0.0)

    def advance(self, n: int = 1, note: str | None = None) -> None:
        self.done += n
        if note is not None:
            self.note = note
        if self.done - self._resumed >= self._in_flight:
            self.check_pace()
        if time.monotonic() - self._shown >= self._every:
            self._show()

    def check_pace(self) -> None:
        """Print the estimate and the advice, once, if the stage will take more than an hour longer.

        Called by `advance` after the first pieces of work, and by the stage after FIRST_LOOK seconds. Pieces in flight
        count half: on a slow machine many are under way before the first one ends.
        """
        if not self._advice or self.total is None:
            return
        advice, self._advice = self._advice, ""
        left = self.total - self.done
        progressed = self.done - self._resumed + min(self._in_flight, left) / 2
        seconds = (time.monotonic() - self._began) / progressed * left if progressed else 0.0
        if seconds > SLOW:
            self._out.write(
                f"{self._line_start}{self.title}: this will take about {duration(seconds)} more at the present pace. "
                f"{advice}\n"
            )
            self._out.flush()

    def line(self) -> str:
        spent = time.monotonic() - self._began
        fresh = self.done - self._resumed
        rate = fresh / spent if spent > 0 and fresh else 0.0
        pace = f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min"
        if self.total is None:
            text = f"{self.title} {self.done}  {pace}  spent {duration(spent)}"
        else:
            left = duration((self.total - self.done) / rate) if rate else "?"
            text = f"{self.title} {self.done}/{self.total}  {pace}  spent {duration(spent)}  left {left}"
        return f"{text}  {self.note}" if self.note else text

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._out.write(f"{self._line_start}{self.line()}{'' if self._live else chr(10)}")
        self._out.flush()

    def close(self) -> None:
        self._show()
        if self._live:
            self._out.write("\n")
            self._out.flush()

    def __enter__(self) -> Progress:
        if self._resumed:
            self._out.write(f"{self.title}: {self._resumed} of {self.total} were done before; resuming\n")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
