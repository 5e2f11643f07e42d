"""What an engine offers: for a query, the numbers and scores of the best chunks. Texts are the Store's business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Ranking:
    """The best chunks for one query, best first; equal scores in ascending chunk number."""

    scores: np.ndarray
    """float64 [n], descending."""
    chunks: np.ndarray
    """int64 [n], numbers of chunks in the Store."""

    def __len__(self) -> int:
        return len(self.chunks)


class Ranker(Protocol):
    def __len__(self) -> int:
        """Number of chunks."""
        ...

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """For every query at most k chunks."""
        ...
