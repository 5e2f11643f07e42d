"""int8 codes of dense vectors: a search reads a quarter of the bytes, and misses nothing.

A row x is stored as a scale s and whole numbers c of -127 .. 127 with x = s c + e, and the length |e| of what that
leaves out. A query is written as q = t d + g in the same way. Then

    q.x = s t (c.d) + (t d).e + g.x        so        |q.x - s t (c.d)| <= |t d| |e| + |g| |x|

by the inequality of Cauchy and Schwarz. |x| <= 1.01, as rows have length 1 or less, but for rounding. c.d
is computed exactly. The rest is computed in float32, where each rounding is off by at most 2**-24 of a number below
9 |q|: |g| <= 1.01 |q| and |e| <= 1.01 |x|, as a number is off by at most half a scale, and MAX_DIMENSION is 256**2.
There are less than eight of them, and a score in float64 is off by less than 2**-36 |q|, so 2**-17 |q| covers all.

So a row whose upper bound is below the lower bounds of k others is not among the best k. The others, about 2 k to 3 k,
are left to be scored from the stored vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.core.errors import UserError
from ratchet.core.processor import usable_cores
from ratchet.retrieval.arrays import Bytes, Doubles, Floats, Numbers, Places
from ratchet.retrieval.backends.int8 import BLOCK_ROWS, GROUP, HEAD, QUERY_DTYPE, TILE, prune, scan
from ratchet.retrieval.threads import run_tasks

LARGEST_NORM = 1.01
"""A bound of the length of a row, which is 1 or less but for rounding."""
Exact = Callable[[Numbers], Doubles]
"""Gives the exact scores of chunks for a query."""
LARGEST = 127
MAX_DIMENSION = 1 << 16
"""255 * 127 * dimension has to fit an int32, too."""
SMALLEST_SCALE = 1e-30
ROUNDING = 2.0**-17
# The best that are asked for beyond which queries are searched for one by one: each takes memory for every query.
MAX_K = 1 << 12
# Candidates of a query beyond 4 k, at which their exact scores decide at once.
MAX_SPARE_CANDIDATES = 1 << 12
# A search is split among threads only where each gets at least this many bytes to multiply: about half a millisecond.
SPLIT_BYTES = 1 << 23


def encode_blocks(vectors: Floats) -> Bytes:
    """uint8 [blocks, bytes of a block]: float32 rows in blocks of 64, the last one filled up with zeros.

    The codes have 128 added, because the instruction multiplies unsigned numbers with signed ones.
    """
    count, dimension = vectors.shape
    blocks, groups = -(-count // BLOCK_ROWS), -(-dimension // 4)
    codes, scales, errors = _quantise(vectors)
    square = np.full((blocks * BLOCK_ROWS, 4 * groups), LARGEST + 1, np.uint8)
    square[:count, :dimension] = codes + (LARGEST + 1)
    head = np.zeros((blocks * BLOCK_ROWS, 2), "<f4")
    head[:count, 0] = scales
    head[:count, 1] = _above(errors)
    coded = np.empty((blocks, block_bytes(dimension)), np.uint8)
    coded[:, :HEAD].view("<f4").reshape(blocks, 2, BLOCK_ROWS)[:] = head.reshape(blocks, BLOCK_ROWS, 2).swapaxes(1, 2)
    grouped = square.reshape(blocks, BLOCK_ROWS, groups, 4).swapaxes(1, 2)
    coded[:, HEAD:] = grouped.reshape(blocks, groups * GROUP)
    return coded


def block_bytes(dimension: int) -> int:
    """Bytes of the codes of 64 rows."""
    return HEAD + -(-dimension // 4) * GROUP


def _quantise(vectors: Floats) -> tuple[Doubles, Floats, Doubles]:
    """Whole numbers in float64, a float32 scale for each row, and the lengths of the errors in float64."""
    wide = vectors.astype(np.float64)
    scales = (np.abs(wide).max(axis=1, initial=0) / LARGEST).astype(np.float32)
    scales[scales < SMALLEST_SCALE] = 0
    steps = scales.astype(np.float64)[:, None]
    codes = np.clip(np.rint(wide / np.where(steps > 0, steps, np.inf)), -LARGEST, LARGEST)
    return codes, scales, np.linalg.norm(wide - steps * codes, axis=1)


def _above(lengths: Doubles) -> Floats:
    """float32 numbers that are surely not below these lengths, which were computed in float64."""
    return np.nextafter((lengths * (1 + 2.0**-30)).astype(np.float32), np.float32(np.inf))


def below(scores: Any) -> Any:
    """float32 numbers that are surely not above float64 ones."""
    return np.nextafter(np.float32(scores), np.float32(-np.inf))


@dataclass(frozen=True)
class QueryCodes:
    """A group of queries as the kernel takes them; where there is more than one, filled up to whole tiles."""

    codes: NDArray[np.int8] | NDArray[np.int16]
    """[tiles, groups of four dimensions, queries of a tile, 4], flat."""
    biases: Places
    """int32: what the 128 that are added to rows' codes add to the sums."""
    factors: Floats
    """float32 [queries, 3]: the scale; what a row's error is multiplied with; the error that every row has."""

    @classmethod
    def of(cls, vectors: Floats) -> QueryCodes:
        count, dimension = vectors.shape
        tile, groups = 1 if count == 1 else TILE, -(-dimension // 4)
        codes, scales, errors = _quantise(vectors)
        square = np.zeros((-(-count // tile) * tile, 4 * groups), QUERY_DTYPE)
        square[:count, :dimension] = codes
        factors = np.zeros((len(square), 3), np.float32)
        factors[:count, 0] = scales
        factors[:count, 1] = _above(np.linalg.norm(codes, axis=1) * scales)
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
        factors[:count, 2] = _above(LARGEST_NORM * errors + ROUNDING * norms)
        tiles = square.reshape(-1, tile, groups, 4).swapaxes(1, 2)
        biases = (LARGEST + 1) * square.sum(axis=1, dtype=np.int32)
        return cls(np.ascontiguousarray(tiles).ravel(), biases.astype(np.int32), factors)


class CodeScorer:
    """Finds candidates on the CPU, from codes that may be memory-mapped; threads may call it at once."""

    def __init__(self, shards: Sequence[Floats], codes: Sequence[Bytes], threads: int | None = None) -> None:
        """`codes`: of each shard the bytes of `encode_blocks`; `threads`: at most so many for one search."""
        self._codes = []
        for blocks, shard in zip(codes, shards, strict=True):
            if len(blocks) != -(-len(shard) // BLOCK_ROWS) * block_bytes(shard.shape[1]):  # the kernel does not check
                raise UserError("the codes of dense vectors are not those of the vectors; build the index again")
            blocks = blocks.view()
            blocks.flags.writeable = False  # of the same type as a file, so that the kernel is compiled once
            self._codes.append((blocks, blocks.view(np.float32)))
        self._firsts = np.cumsum([0, *map(len, shards)]).tolist()
        self._groups = -(-shards[0].shape[1] // 4)
        self._threads = threads or usable_cores()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="dense-search")

    def candidates(self, vectors: Floats, k: int, exact: Sequence[Exact]) -> list[Numbers]:
        """For each query the chunks that may be among its best k; of those with equal exact scores, lower first."""
        if k > MAX_K and len(vectors) > 1:
            one_by_one = zip(np.split(vectors, len(vectors)), exact, strict=True)
            return [self.candidates(vector, k, [scores])[0] for vector, scores in one_by_one]
        queries = QueryCodes.of(vectors)
        min_bound = np.full(len(queries.biases), np.inf, np.float32)
        min_bound[: len(vectors)] = -np.inf
        work = self._firsts[-1] * 4 * self._groups * (1 + len(vectors) // 8)
        pieces = max(1, min(self._threads, work // SPLIT_BYTES))
        bounds = [self._firsts[-1] * piece // pieces for piece in range(pieces + 1)]
        searches = [_Search(queries, min_bound, k, exact, end - first) for first, end in pairwise(bounds)]

        def run(piece: int) -> None:
            first, end = bounds[piece : piece + 2]
            for (codes, floats), start, stop in zip(self._codes, self._firsts, self._firsts[1:], strict=False):
                low, high = (_block_start(bound - start, stop - start) for bound in (first, end))
                searches[piece].scan(codes, floats, self._groups, start, low, high)

        # What is not needed any more is told from one to the others by `min_bound` alone: it only ever rises, and
        # where two writes meet and the lower one stays, more candidates are left than had to be.
        run_tasks(self._pool, pieces, run, range(pieces))
        return [np.concatenate([search.left(query) for search in searches]) for query in range(len(vectors))]


def _block_start(row: int, rows: int) -> int:
    """Where a piece of a shard of so many rows that should begin or end at a row does so."""
    return rows if row >= rows else max(row, 0) // BLOCK_ROWS * BLOCK_ROWS


class _Search:
    """The candidates for a group of queries among some rows."""

    def __init__(self, queries: QueryCodes, min_bound: Floats, k: int, exact: Sequence[Exact], max_rows: int) -> None:
        """`min_bound`: for each query, the lowest that an upper bound may be. All searches of a group share it.
        `max_rows`: about how many rows are searched."""
        self._queries, self._min_bound, self._k, self._exact = queries, min_bound, k, exact
        size = (len(exact), min(4 * k + MAX_SPARE_CANDIDATES, max_rows + 2 * BLOCK_ROWS) + 2 * BLOCK_ROWS)
        self._chunks, self._upper = np.empty(size, np.int64), np.empty(size, np.float32)
        self._counts = np.zeros(len(exact), np.int64)
        self._lower = np.full((len(exact), k), -np.inf, np.float32)

    def scan(self, codes: Bytes, floats: Floats, groups: int, start: int, row: int, end: int) -> None:
        """Rows row .. end - 1 of a shard whose first chunk is `start`."""
        queries = self._queries
        while row < end:
            row, full = scan(
                codes, floats, groups, start, row, end, queries.codes, queries.biases, queries.factors,
                self._min_bound, self._lower, self._chunks, self._upper, self._counts,
            )  # fmt: skip
            if full >= 0:
                self._keep_exact_best(full)

    def _keep_exact_best(self, query: int) -> None:
        """The best k alone. What comes later has higher chunk numbers, so that it must score more to displace them."""
        chunks = self._chunks[query, : self._counts[query]]
        scores = self._exact[query](chunks)
        best = np.sort(np.argsort(-scores, kind="stable")[: self._k])
        chunks, scores = chunks[best], scores[best]
        self._chunks[query, : len(best)], self._upper[query, : len(best)] = chunks, -below(-scores)
        self._counts[query] = len(best)
        self._lower[query] = np.sort(below(scores))  # ascending numbers are a heap
        self._min_bound[query] = max(self._min_bound[query], self._lower[query, 0])

    def left(self, query: int) -> Numbers:
        prune(self._chunks[query], self._upper[query], self._counts, query, self._min_bound[query])
        return self._chunks[query, : self._counts[query]]
