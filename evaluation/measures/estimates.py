"""The records of a mean over questions and of a paired difference. What only reads them needs no NumPy."""

from __future__ import annotations

from ratchet.core.records import Record

LEVEL = 0.05
"""The significance level of everything that is called better or worse."""
FEW = 10
"""With fewer questions whose values differ, a bootstrap interval is too narrow to say anything."""


class Estimate(Record):
    """The mean of a measure over questions, with its interval."""

    mean: float | None
    """None where no question has a value."""
    low: float | None = None
    """The interval's lower bound; None, as `high`, for a single question, which shows no spread."""
    high: float | None = None
    n: int
    """Questions that have a value."""
    nulls: int = 0
    """Trajectories without a value, which the mean skips."""


class Difference(Record):
    """after - before over the questions that have both; None where there are none."""

    before: float | None = None
    after: float | None = None
    mean: float | None = None
    low: float | None = None
    """The interval's lower bound, as in `Estimate`."""
    high: float | None = None
    p: float | None = None
    """Two-sided p value of the paired sign-flip test; of a statistic that is no mean, of `_swap_p`."""
    n: int
    """Questions that have both values."""
    changed: int | None = None
    """The questions among these whose two values differ; None where there are none."""

    def is_clear(self, level: float = LEVEL) -> bool:
        """True where chance does not explain the difference: p is below `level`, and the 95% interval excludes zero.
        Where fewer than FEW questions changed, or the level is a laxer one than the interval's, p alone decides."""
        if self.low is None or self.high is None or self.p is None or self.p >= level:
            return False
        few = self.changed is not None and self.changed < FEW
        return self.low > 0 or self.high < 0 or few or level > LEVEL
