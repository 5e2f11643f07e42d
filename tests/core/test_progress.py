"""A stage says how far it is: in one line that is redrawn on a terminal, and in plain lines elsewhere."""

import io

import pytest

from ratchet.core import progress
from ratchet.core.progress import Progress


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()], ids=["file", "terminal"])
def test_a_line_says_what_is_done_and_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch, out: io.StringIO
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    stage = Progress("judge", 800, 400, out=out)
    clock.now = 600
    stage.advance(100, note="2 null")
    line = "judge 500/800  10.0/min  spent 10m00s  left 30m00s  2 null"
    assert out.getvalue() == (f"\r\x1b[2K{line}" if out.isatty() else f"{line}\n")
