"""Dense retrieval: every chunk ranked by the exact inner product of its vector with the query's."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ratchet.errors import UserError
from ratchet.numba_cache import njit
from retrieval.index import Ranking

# Candidates of a query beyond 4 k, at which their exact scores decide at once: many vectors are alike.
MAX_SPARE_CANDIDATES = 1 << 16
# Elements of one block of vectors, and of the scores of one block: 16 MiB in float32 each.
BLOCK = 1 << 22
QUERY_GROUP = 256
UNIT_ROUNDOFF = 2.0**-24
LARGEST_NORM = 1.01
"""Of a row, which has length 1 or less, and may be rounded to float16."""
Exact = Callable[[np.ndarray], np.ndarray]
"""Gives the exact scores of chunks for a query."""


class DenseRanker:
    """Every chunk ranked by the exact inner product of its vector with the query's; threads may call it at once.

    What scores all chunks finds those that its rounding could have kept out of the best k: from int8 codes of the
    vectors (`retrieval.backends.codes`), in float16 on a GPU (`retrieval.backends.gpu`), or in float32. These are then
    scored again in float64 from the stored vectors, the products added in the order of the dimensions: a score depends
    on the two vectors alone, not on the device, threads, blocks or other queries.
    """

    def __init__(
        self,
        shards: Sequence[np.ndarray],
        encode_queries: Callable[[Sequence[str]], np.ndarray],
        make_scorer: Callable[[Sequence[np.ndarray]], BlockScorer] | None = None,
    ) -> None:
        """`shards` are float32 or float16 [n_i, dimension], memory-mapped or not, with rows of length 1 (or less);
        chunk numbers run through them in order. `encode_queries` gives float32 [n, dimension]. `make_scorer` gives, at
        the first search, what scores all chunks (default: the CPU)."""
        if len({shard.shape[1:] for shard in shards}) > 1 or any(shard.ndim != 2 for shard in shards):
            raise UserError("the shards of dense vectors do not have the same dimension; build the index again")
        self._shards = list(shards)
        self._firsts = np.cumsum([0, *map(len, shards)])
        self._encode = encode_queries
        self._make_scorer = make_scorer or HostScorer
        self._scorer: BlockScorer | None = None
        self._opening = threading.Lock()

    def __len__(self) -> int:
        """Number of chunks."""
        return int(self._firsts[-1])

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """Memory: the candidates, about k a query; without codes a block and its scores for a group of queries too."""
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

    def _rank_group(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        exact = [functools.partial(self._scores, vector.astype(np.float64)) for vector in vectors]
        found = self._open_scorer().candidates(vectors, k, exact)
        return [_best(chunks, scores(chunks), k) for chunks, scores in zip(found, exact, strict=True)]

    def _open_scorer(self) -> BlockScorer:
        with self._opening:  # two first searches must not both fill a GPU
            if self._scorer is None:
                self._scorer = self._make_scorer(self._shards)
            return self._scorer

    def _scores(self, vector: np.ndarray, chunks: np.ndarray) -> np.ndarray:
        """Exact scores of chunks; `vector` is float64."""
        scores = np.empty(len(chunks))
        step = max(1, BLOCK // len(vector))
        for at in range(0, len(chunks), step):
            part = chunks[at : at + step]
            numbers = np.searchsorted(self._firsts, part, side="right") - 1
            for number in np.unique(numbers):
                here = np.flatnonzero(numbers == number)
                rows = widen(self._shards[number][part[here] - self._firsts[number]])
                _add_products(rows, vector, here + at, scores)
        return scores


def _best(chunks: np.ndarray, scores: np.ndarray, k: int) -> Ranking:
    best = np.argsort(-scores, kind="stable")[:k]
    return Ranking(scores[best], chunks[best])


class BlockScorer(Protocol):
    """What scores every chunk for a group of queries, roughly."""

    def candidates(self, vectors: np.ndarray, k: int, exact: Sequence[Exact]) -> list[np.ndarray]:
        """For each query the chunks that may be among its best k; of those with equal exact scores, lower first."""
        ...


class HostScorer:
    """Scores on the CPU, from vectors that may be memory-mapped."""

    def __init__(self, shards: Sequence[np.ndarray]) -> None:
        self._shards = shards

    def candidates(self, vectors: np.ndarray, k: int, exact: Sequence[Exact]) -> list[np.ndarray]:
        """A block of vectors at a time goes through one matrix product with the queries."""
        pools = candidate_pools(vectors, k, exact)
        rows, start = max(1, BLOCK // max(vectors.shape)), 0
        for shard in self._shards:
            for first in range(0, len(shard), rows):
                scores = vectors @ widen(shard[first : first + rows]).T
                for pool, row, best in zip(pools, scores, scores.max(axis=1), strict=True):
                    if best >= pool.min_score:
                        kept = np.flatnonzero(row >= pool.min_score)
                        pool.add(row[kept], kept + start + first)
            start += len(shard)
        return [pool.candidates() for pool in pools]


def candidate_pools(vectors: np.ndarray, k: int, exact: Sequence[Exact], rounding: float = 0.0) -> list[CandidatePool]:
    """A pool for each query; `rounding`: the largest error of a score beyond that of a float32 inner product, for
    vectors of length 1."""
    # A float32 inner product of n terms, added in any order, is off by at most n u / (1 - n u) |x| |y| (Higham,
    # "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1).
    error = vectors.shape[1] * UNIT_ROUNDOFF
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    slack = 2 * LARGEST_NORM * (error / (1 - error) + rounding) * norms
    return [CandidatePool(k, float(width), scores) for width, scores in zip(slack, exact, strict=True)]


class CandidatePool:
    """The chunks that may be among a query's best k, with scores that are off by up to slack / 2."""

    def __init__(self, k: int, slack: float, exact: Exact) -> None:
        self.min_score = np.float32(-np.inf)
        """Scores below it are out."""
        self.k, self.slack, self._exact = k, slack, exact
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._size = 0
        self._prune_at = k

    def add(self, scores: np.ndarray, chunks: np.ndarray) -> None:
        """Float32 scores of chunks, ascending and above those of every call before."""
        self._parts.append((scores, chunks))
        self._size += len(scores)
        if self._size >= self._prune_at:
            scores, chunks = self._pruned()
            if len(scores) > 4 * self.k + MAX_SPARE_CANDIDATES:
                scores, chunks = self._keep_exact_best(scores, chunks)
            self._parts, self._size = [(scores, chunks)], len(scores)
            self._prune_at = 2 * self._size + 64

    def candidates(self) -> np.ndarray:
        return self._pruned()[1]

    def _pruned(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores and chunks without those that k others surely beat; of chunks with equal exact scores, lower first."""
        scores, chunks = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
        if len(scores) < self.k:
            return scores, chunks
        kth = float(np.partition(scores, len(scores) - self.k)[len(scores) - self.k])
        self.min_score = max(self.min_score, below(kth - self.slack))
        kept = scores >= self.min_score
        return scores[kept], chunks[kept]

    def _keep_exact_best(self, scores: np.ndarray, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The best k alone. What comes later has higher chunk numbers, so that it must score more to displace them."""
        exact = self._exact(chunks)
        best = np.argsort(-exact, kind="stable")[: self.k]
        self.min_score = max(self.min_score, below(exact[best[-1]] - self.slack / 2))
        return scores[best], chunks[best]


def below(scores: Any) -> Any:
    """float32 numbers that are surely not above float64 ones."""
    return np.nextafter(np.float32(scores), np.float32(-np.inf))


def widen(block: np.ndarray) -> np.ndarray:
    """float32 of float32 or finite float16 numbers, [n, d]; NumPy's own conversion takes 20 times as long."""
    if block.dtype != np.float16:
        return np.asarray(block, np.float32)
    bits = np.empty(block.shape, np.uint32)
    _shift_bits(np.ascontiguousarray(block).view(np.uint16).ravel(), bits.ravel())
    floats = bits.view(np.float32)
    floats *= np.float32(2.0**112)  # the difference of the exponents' biases; right for subnormal numbers too
    return floats


@njit(nogil=True, cache=True)
def _add_products(rows: Any, vector: Any, places: Any, scores: Any) -> None:
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


@njit(nogil=True, cache=True)
def _shift_bits(halves: Any, bits: Any) -> None:
    """float16's sign, exponent and fraction to where float32 has them."""
    for i in range(len(halves)):
        half = np.uint32(halves[i])
        bits[i] = ((half & np.uint32(0x8000)) << np.uint32(16)) | ((half & np.uint32(0x7FFF)) << np.uint32(13))
