"""One line of progress: done, rate, time left, and further counts. On a terminal it is redrawn in place; elsewhere a
plain line is printed every ten seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

EVERY = 10.0
"""Seconds between two lines where the output is no terminal."""


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

    def __init__(self, title: str, total: int | None, done: int = 0, out: TextIO | None = None) -> None:
        """`total` is None where it is not known before the end."""
        self.title, self.total, self.done = title, total, done
        self.note = ""
        self._resumed = done
        self._out = out or sys.stderr
        self._live = self._out.isatty()
        self._every = 0.2 if self._live else EVERY
        self._began = time.monotonic()
        self._shown = self._began - (self._every if self._live else 0.0)

    def advance(self, n: int = 1, note: str | None = None) -> None:
        self.done += n
        if note is not None:
            self.note = note
        if time.monotonic() - self._shown >= self._every:
            self._show()

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
        self._out.write(f"\r\x1b[2K{self.line()}" if self._live else f"{self.line()}\n")
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
