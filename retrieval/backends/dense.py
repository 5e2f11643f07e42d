"""Dense retrieval: every chunk ranked by the exact inner product of its vector with the query's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from ratchet.core.errors import UserError
from ratchet.core.numba_cache import njit
from ratchet.retrieval.arrays import Bytes, Doubles, Floats, Numbers
from ratchet.retrieval.backends.codes import CodeScorer
from ratchet.retrieval.index import Ranking

QUERY_GROUP = 256
SCORED_AT_ONCE = 1 << 22
"""Numbers of the vectors that are scored exactly at once: 16 MiB."""


class DenseRanker:
    """Every chunk ranked by the exact inner product of its vector with the query's; threads may call it at once.

    From int8 codes of the vectors come the chunks that rounding could have kept out of the best k
    (`retrieval.backends.codes`). These are then scored in float64 from the stored vectors, the products added in the
    order of the dimensions: a score depends on the two vectors alone, not on threads, shards or other queries.
    """

    def __init__(
        self,
        shards: Sequence[Floats],
        codes: Sequence[Bytes],
        encode_queries: Callable[[Sequence[str]], Floats],
        threads: int | None = None,
    ) -> None:
        """`shards` are float32 [n_i, dimension], memory-mapped or not, with rows of length 1 (or less), and `codes` the
        bytes of `encode_blocks` of each; chunk numbers run through them in order. `encode_queries` gives float32
        [n, dimension]. `threads`: at most so many for one search."""
        if len({shard.shape[1:] for shard in shards}) > 1 or any(shard.ndim != 2 for shard in shards):
            raise UserError("the shards of dense vectors do not have the same dimension; build the index again")
        self._shards = list(shards)
        self._firsts = np.cumsum([0, *map(len, shards)])
        self._encode = encode_queries
        self._codes = CodeScorer(shards, codes, threads)

    def __len__(self) -> int:
        """Number of chunks."""
        return int(self._firsts[-1])

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """Return the best k for every query. Memory: the candidates, about k a query."""
        if k < 0:
            raise ValueError(f"k must not be negative, got {k}")
        k = min(k, len(self))
        if k == 0 or not queries:
            return [Ranking.empty() for _ in queries]
        vectors = np.asarray(self._encode(queries), np.float32)
        dimension = self._shards[0].shape[1]
        if vectors.shape != (len(queries), dimension):
            raise UserError(
                f"the index has vectors of {dimension} dimensions, and the model gives {vectors.shape[1]}: it is not "
                "the model that the index was built with; set that one, or build the index again"
            )
        return [
            ranking
            for first in range(0, len(queries), QUERY_GROUP)
            for ranking in self._rank_group(vectors[first : first + QUERY_GROUP], k)
        ]

    def _rank_group(self, vectors: Floats, k: int) -> list[Ranking]:
        exact = [functools.partial(self._scores, vector.astype(np.float64)) for vector in vectors]
        candidates = self._codes.candidates(vectors, k, exact)
        return [_best(chunks, scores(chunks), k) for chunks, scores in zip(candidates, exact, strict=True)]

    def _scores(self, vector: Doubles, chunks: Numbers) -> Doubles:
        """Exact scores of chunks; `vector` is float64."""
        scores = np.empty(len(chunks))
        step = max(1, SCORED_AT_ONCE // len(vector))
        for at in range(0, len(chunks), step):
            part = chunks[at : at + step]
            numbers = np.searchsorted(self._firsts, part, side="right") - 1
            for number in np.unique(numbers):
                here = np.flatnonzero(numbers == number)
                rows = self._shards[number][part[here] - self._firsts[number]]
                _add_products(rows, vector, here + at, scores)
        return scores


def _best(chunks: Numbers, scores: Doubles, k: int) -> Ranking:
    best = np.argsort(-scores, kind="stable")[:k]
    return Ranking(scores[best], chunks[best])


@njit(nogil=True, cache=True)
def _add_products(rows: Floats, vector: Doubles, places: Numbers, scores: Doubles) -> None:
    """Put the inner products of rows with a vector at their places: float64, added from left to right.

    The product of two float32 is exact in float64. Four rows at a time, as an addition waits for the one before it.
    """
    last = len(rows) - 1
    for i in range(0, len(rows), 4):
        a, b, c, d = rows[i], rows[min(i + 1, last)], rows[min(i + 2, last)], rows[min(i + 3, last)]
        total_a, total_b, total_c, total_d = a[0] * vector[0], b[0] * vector[0], c[0] * vector[0], d[0] * vector[0]
        for j in range(1, len(vector)):
            total_a += a[j] * vector[j]
            total_b += b[j] * vector[j]
            total_c += c[j] * vector[j]
            total_d += d[j] * vector[j]
        scores[places[min(i + 3, last)]] = total_d
        scores[places[min(i + 2, last)]] = total_c
        scores[places[min(i + 1, last)]] = total_b
        scores[places[i]] = total_a
