"""A stage that will take hours says so once, early, with what to change."""

import io

import pytest

from ratchet.core import progress
from ratchet.core.progress import FIRST_LOOK, Progress


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def sampling(out: io.StringIO, total: int, done: int = 0, in_flight: int = 4) -> Progress:
    return Progress("sampling", total, done, out=out, advice="Lower sampling.samples.", in_flight=in_flight)


def test_a_long_stage_gives_its_estimate_and_advice_once(clock: Clock) -> None:
    out = io.StringIO()
    stage = sampling(out, total=800)
    for _ in range(8):
        clock.now += 60
        stage.advance()
    # 4 are done after 240 seconds and 4 more half done: 40 seconds each for the 796 that are left.
    assert out.getvalue().count("sampling: this will take about 8h50m more at the present pace. Lower sampling") == 1
    assert out.getvalue().count("Lower sampling.samples.") == 1


def test_the_estimate_comes_after_two_minutes_even_where_nothing_has_finished(clock: Clock) -> None:
    out = io.StringIO()
    stage = sampling(out, total=1000, done=200)
    clock.now = FIRST_LOOK
    stage.check_pace()
    assert "about 13h20m more" in out.getvalue(), "800 left, 2 of them done in 120 seconds"


def test_a_stage_without_advice_says_nothing(clock: Clock) -> None:
    out = io.StringIO()
    stage = Progress("judge", 800, out=out)
    clock.now = 600
    stage.advance()
    assert "this will take" not in out.getvalue() and "judge 1/800" in out.getvalue()
