"""The sparse engine: a query against all shards, on any number of threads, with one exact result.

`Engine` reads a query as terms, finds their posting lists (terms.py) and shares the work out; `search_shard` searches
one shard.

The exact score of a chunk is the float64 sum, in ascending term order, of query weight times weight. It depends on
nothing but the query and the chunk, and equal scores rank by chunk number, so any split of the work over threads,
shards or windows gives the same result to the last bit.

The search of one shard is one compiled function. Window by window and term by term, the codes of the query's postings
add up to an upper bound of every chunk's score (lists.py), a whole number of 16 bits; once there are k results, and
where the machine can, to a coarser one of 8 (`screen_window`). Only chunks whose bound reaches the k-th best score so
far are scored exactly (selection.py). Most windows end with that one test on the maxima of their bounds, as block-max
indexes skip blocks (Ding and Suel 2011, "Faster top-k document retrieval using block-max indexes"); picking, not
adding, is what makes the published kernels slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np

from ratchet.core.errors import UserError
from ratchet.core.numba_cache import njit
from ratchet.core.processor import usable_cores, usable_memory
from ratchet.retrieval.arrays import Bm25Numbers, Doubles, Files, Numbers, Tables, Workspace
from ratchet.retrieval.index import Ranking, Shard
from ratchet.retrieval.sparse.bits import CLASSES, SCREENS
from ratchet.retrieval.sparse.lists import add_bits_blocks, add_window, coarse_steps, open_list, screen_window
from ratchet.retrieval.sparse.postings import WINDOW, WINDOW_BITS, Postings, store_of
from ratchet.retrieval.sparse.quantisation import LARGEST_FREQUENCY, STEPS, code_levels, fill_steps, length_norm
from ratchet.retrieval.sparse.reading import fetch, pointer
from ratchet.retrieval.sparse.selection import LOOKUP, ROW, UPCOMING, new_workspace, offer_chunks, select_chunks
from ratchet.retrieval.sparse.terms import QueryReader, SparseQuery, count_postings, locate_lists, merge_terms

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_tasks(pool: Executor, threads: int, run: Callable[[Job], Result], tasks: Sequence[Job]) -> list[Result]:
    """Return `run` of every task, in their order, on at most so many threads.

    The caller takes tasks as well. So it never waits for a thread of the pool to start, which on a busy machine takes
    longer than a short search.
    """
    waiting = deque(enumerate(tasks))
    results: dict[int, Result] = {}

    def take_tasks() -> None:
        while waiting:
            try:
                number, task = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            results[number] = run(task)

    helpers = [pool.submit(take_tasks) for _ in range(min(threads, len(tasks)) - 1)]
    take_tasks()
    for helper in helpers:
        if not helper.cancel():
            helper.result()
    return [results[number] for number in range(len(tasks))]


LARGEST_BOUND = 0xFFFF


@njit(nogil=True, cache=True)
def search_shard(
    shard: tuple[Files, Tables, Bm25Numbers, float, Numbers, int, int],
    windows: tuple[int, int],
    queries: tuple[Numbers, Numbers, Numbers, Doubles],
    best: tuple[Doubles, Numbers, Numbers],
    workspace: Workspace,
) -> None:
    """Carry the best chunks of some queries on through one shard.

    shard: files, tables and bm25, as for `store_of` and `posting_weight`; the bound of all weights; the levels of
    `code_levels`; the numbers of its chunks and of its first one. windows: the first and one past the last to search.
    queries: offsets; query q has the entries offsets[q] .. offsets[q + 1] - 1 of terms (int64, the term's number in the
    shard), regions (int64, the first word of its region; -1 where the shard does not have it) and weights (float64), in
    one term order for all shards. best: scores (float64) and chunks (int64) [queries, k] and held [queries], the best
    so far by exact scores, with the worst at the root.
    Nothing but these and the workspace is written, and the interpreter's lock is not held: threads may call it at once.
    """
    files, tables, bm25, top, levels, chunk_count, first_chunk = shard
    query_offsets, query_terms, query_regions, query_weights = queries
    heap_scores, heap_chunks, held = best
    bounds, room = workspace[0], workspace[7]
    data, store = pointer(files[0]), store_of(files, tables)
    arrays, narrow = (files, store, bm25), store[2]
    codes = len(levels)
    max_terms = 0
    for q in range(len(query_offsets) - 1):
        max_terms = max(max_terms, query_offsets[q + 1] - query_offsets[q])
    all_lists = np.empty((max_terms, ROW), np.int64)
    steps = np.zeros((max_terms, codes), np.uint16)
    shares = np.empty(max_terms, np.int64)
    screen = (
        workspace[6],
        np.zeros((max_terms, codes), np.uint8),
        np.zeros((max_terms, CLASSES), np.uint8),
        np.empty(max_terms, np.int64),
        np.empty(max_terms, np.int64),
        np.zeros((max_terms, CLASSES), np.uint8),
    )

    for q in range(len(query_offsets) - 1):
        start, n = query_offsets[q], query_offsets[q + 1] - query_offsets[q]
        terms, weights = query_terms[start : start + n], query_weights[start : start + n]
        lists = all_lists[:n]
        query, heap = (lists, terms, weights), (heap_scores[q], heap_chunks[q])
        total = 0.0
        for i in range(n):
            total += max(weights[i], 0.0)
        if total <= 0:
            continue
        for i in range(n):
            # Nothing else reads the heads of lists: they are asked for here, all at once.
            fetch(data, 4 * max(query_regions[start + i], 0))
        # A posting's bound is share * level / 2^16, rounded up, and so is share; a sum of n of them must fit 16 bits.
        span = LARGEST_BOUND - 2 * n
        for i in range(n):
            open_list(files, query_regions[start + i], lists[i], windows, narrow)
            # Terms of negative weight only lower a score: a bound does without them.
            shares[i] = np.int64(np.ceil(max(weights[i], 0.0) * (span / total)))
            fill_steps(shares[i], levels, steps[i])
        # What a bound of 1 is worth: a weight is at most top * level / STEPS^2.
        scale = total * top / span * (2.0**16 / STEPS**2)

        kth_best = 0.0
        screening = SCREENS
        while True:
            window = windows[1]
            for i in range(n):
                window = min(window, lists[i, UPCOMING])
            if window >= windows[1]:
                break
            first = window << WINDOW_BITS
            size = min(WINDOW, chunk_count - first)
            postings = np.int64(0)
            if screening and held[q] == heap_scores.shape[1]:
                if heap_scores[q, 0] != kth_best:
                    kth_best = heap_scores[q, 0]
                    coarse_steps(steps[:n], scale, kth_best, screen[1], screen[2])
                for i in range(n):
                    postings += add_window(
                        files, lists[i], window, size, screen[0], screen[1][i], shares[i], windows[1], room, narrow
                    )
                screened = screen_window(files, lists, shares, size, screen, workspace[2], narrow)
                candidates = workspace[2][:screened]
                # Bounds of 16 bits leave fewer candidates: with many terms, or many scores that are nearly the best.
                screening = screened * n * LOOKUP <= postings
                held[q] = offer_chunks(
                    arrays, query, (first_chunk, first, size, postings), candidates, np.inf, heap, held[q], workspace
                )
                continue
            for i in range(n):
                postings += add_window(
                    files, lists[i], window, size, bounds, steps[i], shares[i], windows[1], room, narrow
                )
            add_bits_blocks(files, lists, size, bounds, shares, steps, room, narrow)
            place = first_chunk, first, size, postings
            held[q] = select_chunks(arrays, query, place, scale, heap, held[q], workspace)


# Work is split among threads only where each gets at least this many words of the posting file, about half a
# millisecond's work: handing over takes a tenth of that. Besides its words, a query takes as long as QUERY_WORDS.
SPLIT_WORDS = 1 << 19
QUERY_WORDS = 1 << 15
# Bytes that are asked for ahead of the search, where the disk has to be read.
PREFETCH_BYTES = 1 << 28
ALL_WINDOWS = (0, 1)
# The most terms of a query: LARGEST_BOUND leaves room for rounding each of them up.
MOST_TERMS = 1 << 14
Hits = tuple[Doubles, Numbers]
"""Scores and chunks [n]."""
Task = tuple[int, int, tuple[int, int]]
"""Queries low .. high - 1 over piece i of n equal pieces of the index's windows."""


@dataclass(frozen=True)
class Bm25:
    """BM25 (Robertson and Zaragoza 2009) as Lucene has scored since version 8, with exact lengths.

    A chunk's score is the sum over query terms of weight * idf * tf / (tf + k1 * (1 - b + b * length / mean length)),
    with idf = log(1 + (N - df + 0.5) / (df + 0.5)). N, df and the mean are those of the whole index.
    """

    k1: float
    b: float


class Engine:
    """Searches the shards of a BM25 (`bm25` given) or learned sparse index; any number of threads may call it."""

    def __init__(
        self,
        shards: Sequence[Shard],
        bm25: Bm25 | None,
        threads: int | None = None,
        read: QueryReader | None = None,
        built: Bm25 | None = None,
    ) -> None:
        """`threads`: at most so many for one call; default: one per core that this process may use. `read`: what `rank`
        reads texts with. `built`: the parameters that the codes of postings were made with, where they are others than
        those of the search: bounds are looser then, and results stay exact."""
        self._read = read
        self._shards = [Postings(shard, bm25 is not None) for shard in shards]
        self._bm25 = bm25
        self._chunks = sum(len(shard) for shard in shards)
        self._windows = sum(shard.windows for shard in self._shards)
        total = sum(shard.manifest.total_length for shard in shards)
        self._mean_length = total / max(self._chunks, 1) or 1.0
        self._numbers = [self._numbers_of(shard, bm25, built or bm25) for shard in self._shards]
        self.threads = threads or usable_cores()
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="search")
        self._workspaces: list[Workspace] = []
        # What does not fit into half of the memory is read from the disk again and again, so it is asked for ahead.
        self._fetch = sum(shard.files[0].nbytes for shard in self._shards) > usable_memory() // 2

    def __len__(self) -> int:
        return self._chunks

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """`search` for texts, as `retrieval.index.Ranker`."""
        assert self._read is not None, "an index is opened with a reader of its queries"
        return self.search(self._read(queries), k)

    def search(self, queries: Sequence[SparseQuery], k: int, threads: int | None = None) -> list[Ranking]:
        """Return the k best chunks with a score above 0 for every query; equal scores in ascending chunk number.

        The result depends neither on `threads` nor on the other queries, nor on how the index is cut into shards.
        """
        threads = min(threads or self.threads, self.threads)
        k = min(k, self._chunks)
        if k <= 0 or not queries:
            return [Ranking.empty() for _ in queries]
        return self._select(self._prepare(queries), k, threads)

    def _sizes(self, begins: Numbers) -> Numbers:
        sizes = np.zeros(begins.shape[1], np.int64)
        for i, shard in enumerate(self._shards):
            count_postings(shard.words, begins[i], sizes)
        return sizes

    def _select(self, batch: _Batch, k: int, threads: int) -> list[Ranking]:
        count = len(batch.offsets) - 1
        if threads > 1:
            threads = max(1, min(threads, (batch.words(0, count) + count * QUERY_WORDS) // SPLIT_WORDS))
        if count >= threads:
            # Several slices a thread, so that one with heavy queries does not keep the others waiting at the end.
            # But what is read from the disk should be read by as few of them as possible.
            slices = 1 if threads == 1 else min(count, threads if self._fetch else 4 * threads)
            bounds = [count * i // slices for i in range(slices + 1)]
            tasks = [(low, high, ALL_WINDOWS) for low, high in pairwise(bounds)]
        else:
            share = threads // count
            tasks = []
            for q in range(count):
                pieces = max(1, min(share, batch.words(q, q + 1) // SPLIT_WORDS))
                tasks += [(q, q + 1, (piece, pieces)) for piece in range(pieces)]
        if len(tasks) == 1:
            return [_best([piece], k) for piece in self._run(batch, tasks[0], k)]
        results = run_tasks(self._pool, threads, lambda task: self._run(batch, task, k), tasks)
        pieces_by_query: list[list[Hits]] = [[] for _ in range(count)]
        for (low, _, _), pieces_of in zip(tasks, results, strict=True):
            for i, piece in enumerate(pieces_of):
                pieces_by_query[low + i].append(piece)
        return [_best(pieces_of, k) for pieces_of in pieces_by_query]

    @contextmanager
    def _workspace(self) -> Iterator[Workspace]:
        try:
            workspace = self._workspaces.pop()
        except IndexError:
            workspace = new_workspace()
        yield workspace
        self._workspaces.append(workspace)

    def _numbers_of(self, shard: Postings, asked: Bm25 | None, built: Bm25 | None) -> tuple[Bm25Numbers, Numbers]:
        """Return `bm25` and `levels` of `search_shard`."""
        if asked is None or built is None:
            return ((0.0, 0.0, 1.0), (0.0, 0.0, 1.0)), code_levels(narrow=False)
        made = float(built.k1), float(built.b), shard.mean_length
        used = float(asked.k1), float(asked.b), self._mean_length
        shortest, longest = 0, LARGEST_FREQUENCY
        if asked != built:
            there = shard.lengths > 0
            shortest = int(shard.lengths.min(initial=LARGEST_FREQUENCY, where=there))
            longest = int(shard.lengths.max(initial=0))
        # Of all lengths between these two, the ratio of the norms is the smallest at one of them.
        norm = length_norm.py_func  # the compiled function is for kernels alone
        norms = [(norm(length, *used), norm(length, *made)) for length in (shortest, longest)]
        return (made, used), code_levels(True, min(a / b if b > 0 else 1.0 for a, b in norms))

    def _prepare(self, queries: Sequence[SparseQuery]) -> _Batch:
        offsets = np.array([0, *accumulate(len(query.terms) for query in queries)], np.int64)
        all_keys = np.concatenate([query.terms for query in queries], dtype=np.uint64, casting="unsafe")
        all_weights = np.concatenate([query.weights for query in queries], dtype=np.float64)
        most = merge_terms(offsets, all_keys, all_weights)
        if most < 0:
            raise UserError("a query's weights must be finite 32-bit numbers")
        if most > MOST_TERMS:
            raise UserError(f"a query has {most:,} different terms; at most {MOST_TERMS:,} can be searched at once")
        all_keys, all_weights = all_keys[: offsets[-1]], all_weights[: offsets[-1]]
        terms, begins, ends = np.empty((3, len(self._shards), len(all_keys)), np.int64)
        for i, shard in enumerate(self._shards):
            locate_lists(shard.hashes, shard.regions, len(shard.words), all_keys, terms[i], begins[i], ends[i])
        if self._bm25 is not None:
            sizes = self._sizes(begins)
            all_weights *= np.log1p((self._chunks - sizes + 0.5) / (sizes + 0.5))
        return _Batch(offsets, terms, begins, ends, all_weights)

    def _run(self, batch: _Batch, task: Task, k: int) -> list[Hits]:
        """The best of some queries in some of the windows, in no order."""
        low, high, (piece, pieces) = task
        begin, end = self._windows * piece // pieces, self._windows * (piece + 1) // pieces
        first, last = batch.offsets[low], batch.offsets[high]
        offsets = batch.offsets[low : high + 1] - first
        scores = np.empty((high - low, k))
        chunks = np.empty((high - low, k), np.int64)
        held = np.zeros(high - low, np.int64)
        window = asked = ahead = 0
        with self._workspace() as workspace:
            for i, shard in enumerate(self._shards):
                windows = (max(begin - window, 0), min(end - window, shard.windows))
                window += shard.windows
                if windows[0] >= windows[1]:
                    continue
                while self._fetch and (asked <= i or (asked < len(self._shards) and ahead < PREFETCH_BYTES)):
                    ahead += self._shards[asked].fetch(batch.begins[asked, first:last], batch.ends[asked, first:last])
                    asked += 1
                if asked > i:
                    ahead -= 4 * int((batch.ends[i, first:last] - batch.begins[i, first:last]).sum())
                bm25, levels = self._numbers[i]
                arrays = (
                    *(shard.files, shard.tables, bm25, shard.shard.manifest.top, levels),
                    *(len(shard.shard), shard.shard.first_chunk),
                )
                entries = batch.terms[i, first:last], batch.begins[i, first:last], batch.weights[first:last]
                search_shard(arrays, windows, (offsets, *entries), (scores, chunks, held), workspace)
        return [(scores[q, : held[q]], chunks[q, : held[q]]) for q in range(high - low)]


@dataclass(frozen=True)
class _Batch:
    offsets: Numbers
    """[queries + 1]: where each query's terms begin, and the end."""
    terms: Numbers
    """int64 [shards, terms of all queries]: the term's number in the shard."""
    begins: Numbers
    ends: Numbers
    """int64 [shards, terms of all queries]: the words of the term's region; -1 where the shard does not have it."""
    weights: Doubles
    """[terms of all queries]."""

    def words(self, low: int, high: int) -> int:
        span = slice(self.offsets[low], self.offsets[high])
        return int((self.ends[:, span] - self.begins[:, span]).sum())


def _best(pieces: list[Hits], k: int) -> Ranking:
    scores, chunks = pieces[0]
    if len(pieces) > 1:
        scores, chunks = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    order = np.lexsort((chunks, -scores))[:k]
    return Ranking(scores[order], chunks[order])
