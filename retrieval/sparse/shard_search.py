"""The search of one shard, as one compiled function.

Window by window and term by term, the codes of the query's postings add up to an upper bound of every chunk's score
(lists.py), a whole number of 16 bits; once there are k results, and where the machine can, to a coarser one of 8
(screening.py). Only chunks whose bound reaches the k-th best score so far are scored exactly (selection.py). Most
windows end with that one test on the maxima of their bounds, as block-max indexes skip blocks (Ding and Suel 2011,
"Faster top-k document retrieval using block-max indexes"); picking, not adding, is what makes the published kernels
slow.
"""

from __future__ import annotations

import numpy as np

from ratchet.core.numba_cache import njit
from ratchet.retrieval.arrays import Bm25Numbers, Doubles, Files, Numbers, Tables, Workspace
from ratchet.retrieval.sparse.bits import CLASSES, SCREENS
from ratchet.retrieval.sparse.lists import add_bits_blocks, add_window, open_list
from ratchet.retrieval.sparse.postings import WINDOW, WINDOW_BITS, store_of
from ratchet.retrieval.sparse.quantisation import STEPS, fill_steps
from ratchet.retrieval.sparse.reading import fetch, pointer
from ratchet.retrieval.sparse.screening import coarse_steps, screen_window
from ratchet.retrieval.sparse.selection import LOOKUP, ROW, UPCOMING, offer_chunks, select_chunks

LARGEST_BOUND = 0xFFFF


@njit(nogil=True, cache=True)
def search_shard(
    files: Files,
    tables: Tables,
    bm25: Bm25Numbers,
    top: float,
    levels: Numbers,
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

    files, tables, bm25: as for `store_of` and `posting_weight`; no weight is larger than `top`. levels: of
    `code_levels`. windows: the first and one past the last to search. Query q has the entries query_offsets[q] ..
    query_offsets[q + 1] - 1 of query_terms (int64, the term's number in the shard), query_regions (int64, the first
    word of its region; -1 where the shard does not have it) and query_weights (float64), in one term order for all
    shards. heap_scores (float64) and heap_chunks (int64) [queries, k] and held [queries] are the best so far by exact
    scores, with the worst at the root.
    Nothing but these and the workspace is written, and the interpreter's lock is not held: threads may call it at once.
    """
    bounds, room = workspace[0], workspace[7]
    data, store = pointer(files[0]), store_of(files, tables)
    narrow = store[2]
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
            postings = np.int64(0)
            if screening and held[q] == heap_scores.shape[1]:
                if heap_scores[q, 0] != best:
                    best = heap_scores[q, 0]
                    coarse_steps(steps[:n], scale, best, screen[1], screen[2])
                for i in range(n):
                    postings += add_window(
                        files, lists[i], window, size, screen[0], screen[1][i], shares[i], windows[1], room, narrow
                    )
                screened = screen_window(files, lists, shares, size, screen, workspace[2], narrow)
                candidates = workspace[2][:screened]
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
                postings += add_window(
                    files, lists[i], window, size, bounds, steps[i], shares[i], windows[1], room, narrow
                )
            add_bits_blocks(files, lists, size, bounds, shares, steps, room, narrow)
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
