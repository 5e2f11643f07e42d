"""The records of a mean over questions and of a paired difference. What only reads them needs no NumPy."""

from __future__ import annotations

from ratchet.records import Record


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
    """The mean of the first system."""
    after: float | None = None
    """The mean of the second system."""
    mean: float | None = None
    """The mean difference."""
    low: float | None = None
    """The interval's lower bound, as in `Estimate`."""
    high: float | None = None
    p: float | None = None
    """Two-sided p value of the paired sign-flip test; of a statistic that is no mean, of `_swap_p`."""
    n: int
    """Questions that have both values."""

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)
