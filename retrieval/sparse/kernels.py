"""The search kernel: exact top k over one shard's postings (retrieval/sparse/postings.py).

Window by window and term by term, the codes of the query's postings add up to an upper bound of every chunk's score,
a whole number of 16 bits; once there are k results, and where the machine can, to a coarser one of 8 (screening.py).
Only chunks whose bound reaches the k-th best score so far are scored exactly (selection.py). Most windows end with that
one test on the maxima of their bounds, as block-max indexes skip blocks (Ding and Suel 2011, "Faster top-k document
retrieval using block-max indexes"); picking, not adding, is what makes the published kernels slow.

The exact score of a chunk is the float64 sum, in ascending term order, of query weight times weight. It depends on
nothing but the query and the chunk, and equal scores rank by chunk number, so any split of the work over threads,
shards or windows gives the same result to the last bit.
"""

from __future__ import annotations

import numpy as np

from ratchet.numba_cache import njit
from retrieval.arrays import Bm25Numbers, Bytes, Doubles, Files, Halves, Numbers, Tables, Workspace
from retrieval.sparse.bits import AHEAD, CLASSES, SCREENS, STRIP, add_bits, fetch, increase, pointer
from retrieval.sparse.postings import (
    BITS,
    BLOCKS,
    SHORT,
    SKIP,
    SPARSE,
    WINDOW,
    WINDOW_BITS,
    bits_head,
    block_bytes,
    store_of,
)
from retrieval.sparse.quantisation import STEPS
from retrieval.sparse.screening import coarse_steps, screen_window
from retrieval.sparse.selection import (
    ABSENT,
    AT,
    BLOCK,
    CODES,
    COLUMNS,
    ENTRIES,
    KIND,
    LEFT,
    LOOKUP,
    NEXT,
    ROW,
    UPCOMING,
    offer_chunks,
    select_chunks,
)

WINDOW_OF_RECORD = 0x3FFF
# The largest bound, and the most terms of a query that leave room for rounding each of them up.
LARGEST_BOUND = 0xFFFF
MOST_TERMS = 1 << 14


def new_workspace() -> Workspace:
    """Allocate the arrays that one call of `search_shard` uses beside the results."""
    return (
        np.zeros(WINDOW, np.uint16),  # bounds, all 0 between calls
        np.empty(COLUMNS, np.uint16),  # maxima
        np.empty(COLUMNS, np.uint16),  # maxima, reordered
        np.empty(WINDOW, np.int32),  # candidates
        np.empty(WINDOW, np.uint16),  # their bounds, reordered
        np.zeros(WINDOW, np.int32),  # slots, all 0 between calls
        np.empty(WINDOW, np.float64),  # exact scores
        np.zeros(WINDOW, np.uint8),  # coarse bounds, all 0 between calls
    )


@njit(nogil=True, cache=True)
def _add_block(bounds: Halves | Bytes, files: Files, kind: int, at: int, entries: int, steps: Halves | Bytes) -> None:
    """Add the bounds of a SPARSE or GAPS block to the window's; steps[c] is the bound of code c."""
    data, halves, _ = files
    if kind == SPARSE:
        chunks = halves[at >> 1 : (at >> 1) + entries]
        codes = data[at + 2 * entries : at + 3 * entries]
        for i in range(entries):
            increase(bounds, chunks[i], steps[codes[i]])
    else:
        first = at + 2 * ((entries + SKIP - 1) // SKIP)
        gaps = data[first : first + entries]
        codes = data[first + entries : first + 2 * entries]
        here = np.uint64(0) - np.uint64(1)
        for i in range(entries):
            here += np.uint64(gaps[i])
            increase(bounds, np.int64(here), steps[codes[i]])


@njit(nogil=True, cache=True)
def open_list(files: Files, region: int, row: Numbers, windows: tuple[int, int], placed: bool) -> None:
    """Set a row of the table of lists to the list's first block in the range of windows."""
    words = files[2]
    row[KIND], row[LEFT], row[UPCOMING] = ABSENT, 0, windows[1]
    if region < 0:
        return
    head = np.int64(words[region])
    if head < BLOCKS:
        row[KIND], row[AT], row[ENTRIES] = SHORT, 4 * (region + 1), head
        row[BLOCK], row[NEXT] = region + 1, 0
        while row[NEXT] < head and words[region + 1 + row[NEXT]] >> WINDOW_BITS < windows[0]:
            row[NEXT] += 1
        if row[NEXT] < head:
            row[UPCOMING] = words[region + 1 + row[NEXT]] >> WINDOW_BITS
        return
    row[BLOCK], row[LEFT] = region + 2, head - BLOCKS
    row[NEXT] = 4 * (region + 2 + row[LEFT])
    while row[LEFT] > 0:
        record = np.int64(words[row[BLOCK]])
        window = (record >> 16) & WINDOW_OF_RECORD
        if window >= windows[0]:
            row[UPCOMING] = window
            break
        row[NEXT] += block_bytes(record >> 30, (record & 0xFFFF) + 1, WINDOW, placed)
        row[BLOCK] += 1
        row[LEFT] -= 1


@njit(nogil=True, cache=True)
def add_window(
    files: Files,
    row: Numbers,
    window: int,
    size: int,
    bounds: Halves | Bytes,
    steps: Halves | Bytes,
    weight: int,
    end: int,
    placed: bool,
) -> int:
    """Add what a list has in a window, all but a BITS block, and move its row on; returns how many postings it has."""
    data, _, words = files
    if row[UPCOMING] != window:
        if row[KIND] != SHORT:
            row[KIND] = ABSENT
        return 0
    if row[KIND] == SHORT:
        at, before = row[NEXT], row[NEXT]
        codes = row[AT] + 4 * row[ENTRIES]
        while at < row[ENTRIES] and words[row[BLOCK] + at] >> WINDOW_BITS == window:
            increase(bounds, words[row[BLOCK] + at] & (WINDOW - 1), steps[data[codes + at]])
            at += 1
        row[NEXT] = at
        row[UPCOMING] = words[row[BLOCK] + at] >> WINDOW_BITS if at < row[ENTRIES] else end
        return at - before
    record = np.int64(words[row[BLOCK]])
    row[KIND], row[AT], row[ENTRIES] = record >> 30, row[NEXT], (record & 0xFFFF) + 1
    if row[KIND] == BITS:
        row[CODES] = row[AT] + bits_head(size)
        # It is read when all other blocks have been added: by then its beginning can be here.
        for ahead in range(0, AHEAD, 64):
            fetch(data, row[AT] + ahead)
            fetch(data, row[CODES] + ahead)
    elif weight > 0:
        _add_block(bounds, files, row[KIND], row[AT], row[ENTRIES], steps)
    row[NEXT] += block_bytes(row[KIND], row[ENTRIES], size, placed)
    row[BLOCK] += 1
    row[LEFT] -= 1
    row[UPCOMING] = (words[row[BLOCK]] >> 16) & WINDOW_OF_RECORD if row[LEFT] > 0 else end
    return row[ENTRIES]


@njit(nogil=True, cache=True)
def _add_bits_blocks(files: Files, lists: Numbers, size: int, bounds: Halves, weights: Numbers) -> None:
    """Add the BITS blocks of all lists in a window, strip by strip."""
    for first in range(0, size, STRIP):
        for i in range(len(lists)):
            if lists[i, KIND] == BITS and weights[i] > 0:
                end = min(first + STRIP, size)
                lists[i, CODES] = add_bits(bounds, files[0], lists[i, AT], lists[i, CODES], first, end, weights[i])


@njit(nogil=True, cache=True)
def search_shard(
    files: Files,
    tables: Tables,
    bm25: Bm25Numbers,
    top: float,
    allowed: Bytes,
    chunk_count: int,
    first_chunk: int,
    windows: tuple[int, int],
    query_offsets: Numbers,
    query_terms: Numbers,
    query_regions: Numbers,
    query_weights: Doubles,
    heap_scores: Doubles,
    heap_chunks: Numbers,
    held: Numbers,
    workspace: Workspace,
) -> None:
    """Carry the best chunks of some queries on through one shard.

    files, tables, bm25: as for `store_of` and `posting_weight`; no weight is larger than `top`. allowed: uint8 per
    chunk, 0 for chunks to leave out; empty: none. windows: the first and one past the last to search. Query q has the
    entries query_offsets[q] .. query_offsets[q + 1] - 1 of query_terms (int64, the term's number in the shard),
    query_regions (int64, the first word of its region; -1 where the shard does not have it) and query_weights
    (float64), in one term order for all shards. heap_scores (float64) and heap_chunks (int64) [queries, k] and held
    [queries] are the best so far by exact scores, with the worst at the root.
    Nothing but these and the workspace is written, and the interpreter's lock is not held: threads may call it at once.
    """
    bounds = workspace[0]
    data, store = pointer(files[0]), store_of(files, tables)
    placed = len(tables[0]) == 0
    max_terms = 0
    for q in range(len(query_offsets) - 1):
        max_terms = max(max_terms, query_offsets[q + 1] - query_offsets[q])
    all_lists = np.empty((max_terms, ROW), np.int64)
    steps = np.zeros((max_terms, STEPS + 1), np.uint16)
    shares = np.empty(max_terms, np.int64)
    screen = (
        workspace[7],
        np.zeros((max_terms, STEPS + 1), np.uint8),
        np.zeros((max_terms, CLASSES), np.uint8),
        np.empty(max_terms, np.int64),
        np.empty(max_terms, np.int64),
        np.zeros((max_terms, CLASSES), np.uint8),
    )

    for q in range(len(query_offsets) - 1):
        start, n = query_offsets[q], query_offsets[q + 1] - query_offsets[q]
        terms, weights = query_terms[start : start + n], query_weights[start : start + n]
        lists = all_lists[:n]
        total = 0.0
        for i in range(n):
            total += max(weights[i], 0.0)
        if total <= 0:
            continue
        for i in range(n):
            # Nothing else reads the heads of lists: they are asked for here, all at once.
            fetch(data, 4 * max(query_regions[start + i], 0))
        # A posting's bound is share * code^2 / 2^16, rounded up, and so is share; a sum of n of them must fit 16 bits.
        span = LARGEST_BOUND - 2 * n
        for i in range(n):
            open_list(files, query_regions[start + i], lists[i], windows, placed)
            # Terms of negative weight only lower a score: a bound does without them.
            shares[i] = np.int64(np.ceil(max(weights[i], 0.0) * (span / total)))
            for c in range(1, STEPS + 1):
                steps[i, c] = (shares[i] * c * c >> 16) + 1 if shares[i] > 0 else 0
        # What a bound of 1 is worth: a weight is at most top * (code / STEPS)^2.
        scale = total * top / span * (2.0**16 / STEPS**2)

        best = 0.0
        screening = SCREENS
        while True:
            window = windows[1]
            for i in range(n):
                window = min(window, lists[i, UPCOMING])
            if window >= windows[1]:
                break
            first = window << WINDOW_BITS
            size = min(WINDOW, chunk_count - first)
            postings = 0
            if screening and held[q] == heap_scores.shape[1]:
                if heap_scores[q, 0] != best:
                    best = heap_scores[q, 0]
                    coarse_steps(steps[:n], scale, best, screen[1], screen[2])
                for i in range(n):
                    postings += add_window(
                        files, lists[i], window, size, screen[0], screen[1][i], shares[i], windows[1], placed
                    )
                screened = screen_window(files, lists, shares, allowed, first, size, screen, workspace[3])
                candidates = workspace[3][:screened]
                # Bounds of 16 bits leave fewer candidates: with many terms, or many scores that are nearly the best.
                screening = screened * n * LOOKUP <= postings
                held[q] = offer_chunks(
                    files,
                    store,
                    bm25,
                    lists,
                    terms,
                    weights,
                    first_chunk,
                    first,
                    size,
                    postings,
                    candidates,
                    np.inf,
                    heap_scores[q],
                    heap_chunks[q],
                    held[q],
                    workspace,
                )
                continue
            for i in range(n):
                postings += add_window(files, lists[i], window, size, bounds, steps[i], shares[i], windows[1], placed)
            _add_bits_blocks(files, lists, size, bounds, shares)
            if len(allowed) > 0:
                for i in range(size):
                    bounds[i] *= np.uint16(allowed[first + i])
            held[q] = select_chunks(
                files,
                store,
                bm25,
                lists,
                terms,
                weights,
                first_chunk,
                first,
                size,
                postings,
                scale,
                heap_scores[q],
                heap_chunks[q],
                held[q],
                workspace,
            )
