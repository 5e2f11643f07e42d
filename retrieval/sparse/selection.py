"""From a window's upper bounds to the best chunks: which are worth an exact score, and their exact scores."""

from __future__ import annotations

import numpy as np

from ratchet.core.numba_cache import inner
from ratchet.retrieval.arrays import (
    Doubles,
    Halves,
    Heap,
    Numbers,
    Places,
    Pointer,
    QueryLists,
    ShardArrays,
    Window,
    Workspace,
)
from ratchet.retrieval.sparse.postings import (
    BITS,
    LOWS,
    OVERWRITE,
    RANK,
    SHORT,
    WINDOW,
    code_at,
    find_entry,
    posting_weight,
    read_lows,
)
from ratchet.retrieval.sparse.reading import fetch, pointer

# Bounds are compared column by column: chunk i of a window is in column i modulo COLUMNS, so that the maxima of all
# columns are taken by element-wise operations on long rows.
COLUMNS = 1024
# Looking a chunk up in one list takes as long as walking over this many postings.
LOOKUP = 24
# Chunks that are looked up together.
GROUP = 32
# Columns of a query's table of lists.
KIND, AT, BASE, CODES, ENTRIES, BLOCK, LEFT, NEXT, UPCOMING = range(9)
ROW = 9
ABSENT = -1
Chosen = Numbers | Places
"""Chunks of a window [n]."""


def new_workspace() -> Workspace:
    """Allocate the arrays that one call of `search_shard` uses beside the results."""
    return (
        np.zeros(WINDOW, np.uint16),  # bounds, all 0 between calls
        np.empty(COLUMNS, np.uint16),  # maxima
        np.empty(WINDOW, np.int32),  # candidates
        np.empty(WINDOW, np.uint16),  # their bounds
        np.zeros(WINDOW, np.int32),  # slots, all 0 between calls
        np.empty(WINDOW, np.float64),  # exact scores
        np.zeros(WINDOW, np.uint8),  # coarse bounds, all 0 between calls
        np.empty(WINDOW + OVERWRITE, np.uint16),  # chunks of a block
    )


# A query's best chunks so far are a binary heap in two arrays, scores and chunks, with the worst at the root.


@inner(inline="always")
def worse(score: float, chunk: int, other_score: float, other_chunk: int) -> bool:
    """Return whether the first of two hits ranks behind the second: by score, then the later chunk."""
    return score < other_score or (score == other_score and chunk > other_chunk)


@inner
def push(scores: Doubles, chunks: Numbers, held: int, score: float, chunk: int) -> int:
    """Add a hit to a heap of `held`, in place of the worst where the arrays are full; returns how many it holds."""
    if held < len(scores):
        at = held
        while at > 0:
            parent = (at - 1) >> 1
            if worse(scores[parent], chunks[parent], score, chunk):
                break
            scores[at], chunks[at] = scores[parent], chunks[parent]
            at = parent
        scores[at], chunks[at] = score, chunk
        return held + 1
    if not worse(scores[0], chunks[0], score, chunk):
        return held
    at = 0
    while True:
        child = 2 * at + 1
        if child >= held:
            break
        if child + 1 < held and worse(scores[child + 1], chunks[child + 1], scores[child], chunks[child]):
            child += 1
        if worse(score, chunk, scores[child], chunks[child]):
            break
        scores[at], chunks[at] = scores[child], chunks[child]
        at = child
    scores[at], chunks[at] = score, chunk
    return held


@inner
def column_maxima(bounds: Halves, size: int, maxima: Halves) -> None:
    """The largest bound in every column."""
    maxima[:] = 0
    for row in range((size + COLUMNS - 1) // COLUMNS):
        values = bounds[row * COLUMNS : (row + 1) * COLUMNS]
        for i in range(COLUMNS):
            value, best = values[i], maxima[i]
            maxima[i] = value if value > best else best


@inner
def kth_largest(values: Halves, count: int, k: int) -> int:
    """The k-th largest of values[:count], 1 <= k <= count: bit by bit, the largest that k of them reach.

    16 counts without a branch that depends on the data take a sixth of the time of a quickselect among 1024.
    """
    largest = 0
    for bit in range(15, -1, -1):
        least = np.uint16(largest | (1 << bit))
        reached = 0
        for i in range(count):
            reached += values[i] >= least
        if reached >= k:
            largest = int(least)
    return largest


@inner
def score_some(
    data: Pointer, shard: ShardArrays, query: QueryLists, window: Window, wanted: Chosen, hits: Numbers, exact: Doubles
) -> None:
    """exact[j] becomes the exact score of chunk wanted[j] of a window: float64, added in term order.

    data: a `pointer` to the posting file's bytes.
    hits: int64 [len(wanted) * len(terms), 4], for what is found. All chunks are looked up in one list after the other:
    the look-ups in one list do not wait for each other's memory, and its kind is the same for all.
    """
    (_, store, bm25), (lists, terms, weights), (_, first, size, _) = shard, query, window
    narrow = store[2]
    # Adding a block does not read its ranks: they are asked for here, all at once.
    for i in range(len(terms)):
        if lists[i, KIND] == BITS:
            ranks = lists[i, AT] + (size + 63) // 64 * 8
            for j in range(len(wanted)):
                fetch(data, ranks + wanted[j] // RANK * 2)
    hit_count = 0
    for i in range(len(terms)):
        kind, at, entries = lists[i, KIND], lists[i, AT], lists[i, ENTRIES]
        if kind == ABSENT:
            continue
        codes = lists[i, BASE]
        base = first if kind == SHORT else 0
        for j in range(len(wanted)):
            code, entry = find_entry(data, kind, at, codes, entries, size, wanted[j] + base, narrow)
            hits[hit_count, 0], hits[hit_count, 1], hits[hit_count, 2], hits[hit_count, 3] = i, j, code, entry
            hit_count += code > 0
            # Places were not read so far: they are asked for here, all at once. At `at` is nothing new.
            fetch(data, at + (codes - at + entries + (entry >> 1)) * ((not narrow) & (code > 0)))
    exact[: len(wanted)] = 0.0
    for hit in range(hit_count):
        i, j, code, entry = hits[hit, 0], hits[hit, 1], hits[hit, 2], hits[hit, 3]
        places = lists[i, BASE] + lists[i, ENTRIES]
        chunk = first + int(wanted[j])
        exact[j] += weights[i] * posting_weight(store, bm25, places, code, entry, terms[i], chunk)


@inner
def _score_many(
    shard: ShardArrays, query: QueryLists, window: Window, wanted: Chosen, slots: Places, exact: Doubles, chunks: Halves
) -> None:
    """exact[i] becomes the exact score of chunk wanted[i]; a list is walked once.

    slots: all 0, and left so; chunks: room for the chunks of a block.
    """
    (files, store, bm25), (lists, terms, weights), (_, first, size, _) = shard, query, window
    data, words = files
    pointed, narrow = pointer(data), store[2]
    for i in range(len(wanted)):
        slots[wanted[i]] = i + 1
        exact[i] = 0.0
    for i in range(len(terms)):
        kind, at, entries = lists[i, KIND], lists[i, AT], lists[i, ENTRIES]
        if kind == ABSENT:
            continue
        codes = lists[i, BASE]
        if kind == BITS:
            for j in range(len(wanted)):
                code, entry = find_entry(pointed, kind, at, codes, entries, size, np.int64(wanted[j]), narrow)
                if code > 0:
                    chunk = first + wanted[j]
                    exact[j] += weights[i] * posting_weight(store, bm25, codes + entries, code, entry, terms[i], chunk)
            continue
        if kind == LOWS:
            read_lows(data, at, entries, size, chunks)
        for entry in range(entries):
            if kind == LOWS:
                local = int(chunks[entry])
            else:
                local = int(words[(at >> 2) + entry]) - first
                if local < 0 or local >= size:
                    continue
            slot = slots[local]
            if slot > 0:
                code, chunk = code_at(data, codes, entry, narrow), first + local
                weight = posting_weight(store, bm25, codes + entries, code, entry, terms[i], chunk)
                exact[slot - 1] += weights[i] * weight
    for i in range(len(wanted)):
        slots[wanted[i]] = 0


@inner
def _threshold(heap_scores: Doubles, held: int, scale: float) -> int:
    """The least bound that may still belong to the best: 0 until there are k."""
    if held < len(heap_scores):
        return 0
    # Scores and scale are rounded to float64; a little below is sure to be low enough.
    return int(max(0.0, min(heap_scores[0] / scale, 65535.0) * (1 - 1e-9)))


@inner
def offer_chunks(
    shard: ShardArrays,
    query: QueryLists,
    window: Window,
    wanted: Chosen,
    scale: float,
    heap: Heap,
    held: int,
    workspace: Workspace,
) -> int:
    """Offer some of a window's chunks, with their exact scores, to a query's heap; returns how many it holds.

    A chunk's score is at most `scale` times its bound: one that cannot belong is left out.
    """
    bounds, slots, exact, chunks = workspace[0], workspace[4], workspace[5], workspace[7]
    num_terms, (first_chunk, first, _, postings), (heap_scores, heap_chunks) = len(query[1]), window, heap
    if len(wanted) * num_terms * LOOKUP > postings:
        _score_many(shard, query, window, wanted, slots, exact, chunks)
        for j in range(len(wanted)):
            if exact[j] > 0:
                held = push(heap_scores, heap_chunks, held, exact[j], first_chunk + first + wanted[j])
        return held
    group = min(GROUP, len(wanted))
    hits = np.empty((group * num_terms, 4), np.int64)
    some = np.empty(group, np.int64)
    data = pointer(shard[0][0])
    at = 0
    while at < len(wanted):
        least, count = _threshold(heap_scores, held, scale), 0
        while at < len(wanted) and count < group:
            some[count] = wanted[at]
            count += bounds[wanted[at]] >= least
            at += 1
        score_some(data, shard, query, window, some[:count], hits, exact)
        for j in range(count):
            if exact[j] > 0:
                held = push(heap_scores, heap_chunks, held, exact[j], first_chunk + first + some[j])
    return held


@inner
def select_chunks(
    shard: ShardArrays, query: QueryLists, window: Window, scale: float, heap: Heap, held: int, workspace: Workspace
) -> int:
    """Offer a window's chunks to a query's heap and set the window's bounds back to 0; returns how many it holds.

    A chunk's score is at most `scale` times its bound, and the bound of a chunk with a posting is above 0.
    """
    bounds, maxima, candidates, picked = workspace[:4]
    size, heap_scores = window[2], heap[0]
    k = len(heap_scores)
    column_maxima(bounds, size, maxima)
    floor = _threshold(heap_scores, held, scale)
    if held < k and k - held < COLUMNS:
        # As many columns as places are left, those with the best maxima, hold at least that many chunks.
        floor = kth_largest(maxima, len(maxima), k - held)
    ceiling = 1 << 16
    while True:
        count = 0
        for column in range(COLUMNS):
            if maxima[column] >= floor and maxima[column] > 0:
                for at in range(column, size, COLUMNS):
                    if floor <= bounds[at] < ceiling and bounds[at] > 0:
                        candidates[count] = at
                        count += 1
        # The heap is filled with the most promising first, so that few of the others need a second look.
        leading = count
        if 0 < k - held < count:
            for j in range(count):
                picked[j] = bounds[candidates[j]]
            cut = kth_largest(picked, np.int64(count), k - held)
            leading = 0
            for j in range(count):
                if bounds[candidates[j]] >= cut:
                    candidates[leading], candidates[j] = candidates[j], candidates[leading]
                    leading += 1
        begin, end = 0, leading
        while begin < end:
            held = offer_chunks(shard, query, window, candidates[begin:end], scale, heap, held, workspace)
            # Then those of the others that may still belong.
            least = _threshold(heap_scores, held, scale)
            begin = end
            if end == leading:
                for j in range(leading, count):
                    if bounds[candidates[j]] >= least:
                        candidates[end] = candidates[j]
                        end += 1
        # Chunks below the first floor may still belong to the best, now that these are known.
        ceiling = floor
        floor = _threshold(heap_scores, held, scale)
        if floor >= ceiling:
            break
    bounds[: (size + COLUMNS - 1) // COLUMNS * COLUMNS] = 0
    return held
