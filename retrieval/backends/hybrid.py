"""Hybrid retrieval: the rankings of several engines over the same chunks become one, by reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.index import Ranker, Ranking

CONSTANT = 60


def fuse(rankings: Sequence[Ranking], k: int) -> Ranking:
    """At most k chunks by the sum of 1 / (CONSTANT + rank) over the rankings that have them, ranks from 1.

    Cormack et al. 2009 ("Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank Learning Methods"). The
    engines' scores do not matter, only their order; nor does the order of the rankings. A ranking must not name a chunk
    twice. Equal sums come in ascending chunk number.
    """
    chunks = np.concatenate([np.empty(0, np.int64), *(ranking.chunks for ranking in rankings)])
    parts = np.concatenate([np.empty(0), *(1.0 / (CONSTANT + np.arange(1.0, len(r) + 1)) for r in rankings)])
    # A chunk's parts are added from the smallest up, so that the sum is the same in whatever order the rankings come.
    order = np.argsort(parts, kind="stable")
    distinct, places = np.unique(chunks[order], return_inverse=True)
    sums = np.bincount(places, parts[order], len(distinct))
    best = np.argsort(-sums, kind="stable")[:k]
    return Ranking(sums[best], distinct[best])


class HybridRanker:
    """Rankers over one Store, fused.

    Every ranker is asked for its best max(k, depth) chunks, and only these take part. So rankings of up to `depth` are
    beginnings of one and the same ranking, and paging within `depth` neither skips nor repeats a chunk. Beyond it a
    longer ranking may put chunks in front that a shorter one did not see: set depth to the deepest page that is used,
    100 or more where recall matters, for a chunk that is 20th in both lists beats one that is 5th in one.
    """

    def __init__(self, rankers: Sequence[Ranker], depth: int = 100) -> None:
        self._rankers, self._depth = list(rankers), depth

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self._rankers[0])

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        lists = [ranker.rank(queries, max(k, self._depth)) for ranker in self._rankers]
        return [fuse(rankings, k) for rankings in zip(*lists, strict=True)]
