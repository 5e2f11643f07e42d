"""The search kernel: exact top k over one shard's postings (retrieval/postings.py).

Window by window and term by term, the codes of the query's postings add up to an upper bound of every chunk's score.
Only chunks whose bound reaches the k-th best score so far are scored exactly. Most windows end with that one test on
the maxima of 64 bounds at a time; picking, not adding, is what makes the published kernels slow.

The exact score of a chunk is the float64 sum, in ascending term order, of query weight times weight. It depends on
nothing but the query and the chunk, and equal scores rank by chunk number, so any split of the work over threads,
shards or windows gives the same result to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from retrieval.codes import STEPS, length_norm
from retrieval.heap import offer
from retrieval.postings import (
    BLOCKS,
    DENSE,
    GAPS,
    SHORT,
    SKIP,
    SPARSE,
    WINDOW,
    WINDOW_BITS,
    block_bytes,
    find_entry,
    frequency_of,
    value_of,
)

ABSENT = -1
STRIDE = 64
# A window with fewer postings than this is picked over by walking its lists again, not all of its chunks.
FEW = 2048
# Query weights are scaled so that the largest is 1; smaller ones than this are raised to it, which keeps bounds bounds.
TINY = 1e-30


@njit(nogil=True, cache=True)
def _add_block(
    scores: Any, data: Any, halves: Any, kind: int, at: int, entries: int, window_chunks: int, steps: Any, unit: Any
) -> None:
    """Add a block's bounds to the window's scores; steps[c] = unit * c * c is the bound of code c."""
    if kind == SPARSE:
        first, codes = at >> 1, at + 2 * entries
        for i in range(entries):
            scores[halves[first + i]] += steps[data[codes + i]]
    elif kind == GAPS:
        gaps = at + 2 * ((entries + SKIP - 1) // SKIP)
        codes = gaps + entries
        here = np.uint32(0xFFFFFFFF)
        for i in range(entries):
            here = np.uint32(here + data[gaps + i])
            scores[here] += steps[data[codes + i]]
    else:
        for i in range(window_chunks):
            code = np.float32(data[at + i])
            scores[i] += unit * code * code


@njit(nogil=True, cache=True)
def _stride_maxima(scores: Any, size: int, maxima: Any) -> int:
    """Largest score in every 64 chunks; returns how many there are. Scores are not negative, so bits order them."""
    count = (size + STRIDE - 1) // STRIDE
    for i in range(count):
        best = np.int32(0)
        for j in range(i * STRIDE, (i + 1) * STRIDE):
            best = max(best, scores[j])
        maxima[i] = best
    return count


@njit(nogil=True, cache=True)
def _kth_largest(values: Any, count: int, k: int) -> Any:
    """The k-th largest of values[:count], 1 <= k <= count (Hoare's selection); reorders them."""
    low, high, wanted = 0, count - 1, k - 1
    while low < high:
        pivot = values[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if wanted <= j:
            high = j
        elif wanted >= i:
            low = i
        else:
            break
    return values[wanted]


@njit(nogil=True, cache=True)
def search_shard(
    shard: Any,
    lengths: Any,
    weights_of_values: Any,
    code_values: Any,
    exception_keys: Any,
    exception_values: Any,
    allowed: Any,
    bm25: Any,
    chunk_count: int,
    first_chunk: int,
    windows: Any,
    query_offsets: Any,
    query_terms: Any,
    query_regions: Any,
    query_weights: Any,
    top: float,
    heap_scores: Any,
    heap_chunks: Any,
    held: Any,
    scores: Any,
    maxima: Any,
    candidates: Any,
) -> None:
    """Carry the best chunks of some queries on through one shard.

    shard: the posting file as (uint8, uint16, uint32) arrays. Query q has the entries query_offsets[q] ..
    query_offsets[q + 1] - 1 of query_terms (the term's number in the shard), query_regions (the first word of its
    region, -1 where the shard does not have it) and query_weights (float64), in ascending term order everywhere.
    A weight of the index is at most `top`. bm25: (k1, b, mean length in the shard, mean length in the index); without
    chunk lengths the index is a learned sparse one. allowed: uint8 per chunk, 0 for chunks to leave out; empty: none.
    windows: first and one past the last window to search. heap_scores and heap_chunks [queries, k], held [queries]:
    the best so far, worst at the root. scores (float32 [WINDOW], all 0, and left so), maxima (int32
    [WINDOW / 64, twice]) and candidates (int32 [WINDOW]) are workspace. Only the heaps and the workspace are written, and
    the interpreter's lock is not held: threads may call it at once on different queries or heaps.
    """
    data, halves, words = shard
    score_bits = scores.view(np.int32)
    placed = len(lengths) == 0
    k1, b, shard_mean, mean = bm25
    most = 0
    for q in range(len(query_offsets) - 1):
        most = max(most, query_offsets[q + 1] - query_offsets[q])
    steps = np.empty((most, STEPS + 1), np.float32)
    kinds = np.empty(most, np.int64)
    ats = np.empty(most, np.int64)
    counts = np.empty(most, np.int64)
    blocks_at = np.empty(most, np.int64)
    blocks_left = np.empty(most, np.int64)
    data_at = np.empty(most, np.int64)
    upcoming = np.empty(most, np.int64)
    units = np.empty(most, np.float32)
    picked = np.empty(WINDOW, np.float32)

    for q in range(len(query_offsets) - 1):
        start = query_offsets[q]
        n = query_offsets[q + 1] - start
        k = heap_scores.shape[1]
        largest = 0.0
        for i in range(n):
            largest = max(largest, query_weights[start + i])
        if largest <= 0 or k == 0:
            continue
        total = 0.0
        for i in range(n):
            weight = query_weights[start + i] / largest
            if weight > 0:
                weight = max(weight, TINY)
                total += weight
                units[i] = np.float32(weight * top / (STEPS * STEPS))
                for c in range(STEPS + 1):
                    steps[i, c] = units[i] * np.float32(c) * np.float32(c)
            else:
                units[i] = 0
        # What n float32 additions and the products before them can lose.
        margin = total * top * (n + 8) * 2.0**-23

        # Every list, at its first block in the range of windows.
        for i in range(n):
            region = query_regions[start + i]
            kinds[i] = ABSENT
            upcoming[i] = windows[1]
            if region < 0:
                blocks_left[i] = 0
                continue
            head = words[region]
            if head >= BLOCKS:
                blocks_left[i] = head - BLOCKS
                blocks_at[i] = region + 2
                data_at[i] = 4 * (region + 2 + blocks_left[i])
                while blocks_left[i] > 0:
                    record = words[blocks_at[i]]
                    window = (record >> 16) & 0x3FFF
                    if window >= windows[0]:
                        upcoming[i] = window
                        break
                    data_at[i] += block_bytes(record >> 30, (record & 0xFFFF) + 1, WINDOW, placed)
                    blocks_at[i] += 1
                    blocks_left[i] -= 1
            else:
                # A short list: `counts` chunks from word blocks_at on; data_at is the next one's number.
                kinds[i] = SHORT
                blocks_left[i] = 0
                blocks_at[i] = region + 1
                counts[i] = head
                ats[i] = 4 * (region + 1)
                data_at[i] = 0
                while data_at[i] < head and words[region + 1 + data_at[i]] >> WINDOW_BITS < windows[0]:
                    data_at[i] += 1
                if data_at[i] < head:
                    upcoming[i] = words[region + 1 + data_at[i]] >> WINDOW_BITS

        while True:
            window = windows[1]
            for i in range(n):
                window = min(window, upcoming[i])
            if window >= windows[1]:
                break
            window_first = window << WINDOW_BITS
            size = min(WINDOW, chunk_count - window_first)
            postings = 0
            for i in range(n):
                if upcoming[i] != window:
                    if kinds[i] != SHORT:
                        kinds[i] = ABSENT
                    continue
                adds = units[i] > 0
                if kinds[i] == SHORT:
                    at = data_at[i]
                    while at < counts[i] and words[blocks_at[i] + at] >> WINDOW_BITS == window:
                        if adds:
                            local = words[blocks_at[i] + at] - window_first
                            scores[local] += steps[i, data[ats[i] + 4 * counts[i] + at]]
                            postings += 1
                        at += 1
                    data_at[i] = at
                    upcoming[i] = words[blocks_at[i] + at] >> WINDOW_BITS if at < counts[i] else windows[1]
                    continue
                record = words[blocks_at[i]]
                kinds[i] = record >> 30
                ats[i] = data_at[i]
                counts[i] = (record & 0xFFFF) + 1
                if adds:
                    _add_block(scores, data, halves, kinds[i], ats[i], counts[i], size, steps[i], units[i])
                    postings += size if kinds[i] == DENSE else counts[i]
                data_at[i] += block_bytes(kinds[i], counts[i], size, placed)
                blocks_at[i] += 1
                blocks_left[i] -= 1
                upcoming[i] = (words[blocks_at[i]] >> 16) & 0x3FFF if blocks_left[i] > 0 else windows[1]
            if postings == 0:
                continue
            if len(allowed) > 0:
                for j in range(size):
                    scores[j] *= np.float32(allowed[window_first + j])

            floor = np.float32(0)
            if held[q] == k:
                floor = np.float32(max(0.0, heap_scores[q, 0] / largest - margin))
            strides = _stride_maxima(score_bits, size, maxima[0])
            if held[q] < k:
                # As many strides as there are places left, those with the best maxima, hold that many chunks.
                missing = k - held[q]
                if missing < strides:
                    maxima[1, :strides] = maxima[0, :strides]
                    kth = _kth_largest(maxima[1], strides, missing)
                    floor = np.int32(kth).view(np.float32)
            ceiling = np.float32(np.inf)
            while True:
                found = 0
                floor_bits = max(np.int32(1), np.float32(floor).view(np.int32))
                ceiling_bits = np.float32(ceiling).view(np.int32)
                for stride in range(strides):
                    if maxima[0, stride] >= floor_bits:
                        for j in range(stride * STRIDE, (stride + 1) * STRIDE):
                            bits = score_bits[j]
                            if floor_bits <= bits < ceiling_bits:
                                candidates[found] = j
                                found += 1
                cut = np.float32(0)
                missing = k - held[q]
                if 0 < missing < found:
                    # Fill the heap with the most promising first, so that few of the others need a second look.
                    for j in range(found):
                        picked[j] = scores[candidates[j]]
                    cut = _kth_largest(picked, found, missing)
                for turn in range(2):
                    if turn == 1 and cut == 0:
                        break
                    for j in range(found):
                        local = candidates[j]
                        bound = scores[local]
                        if (bound >= cut) != (turn == 0):
                            continue
                        if held[q] == k and bound < heap_scores[q, 0] / largest - margin:
                            continue
                        score = 0.0
                        for i in range(n):
                            kind, at, entries = kinds[i], ats[i], counts[i]
                            chunk = window_first + local
                            if kind == ABSENT:
                                continue
                            if kind == SHORT:
                                code, entry = 0, 0
                                low, high = 0, entries
                                while low < high:
                                    middle = (low + high) >> 1
                                    if words[blocks_at[i] + middle] < chunk:
                                        low = middle + 1
                                    else:
                                        high = middle
                                if low < entries and words[blocks_at[i] + low] == chunk:
                                    code, entry = int(data[at + 4 * entries + low]), low
                            else:
                                code, entry = find_entry(data, halves, kind, at, entries, size, local)
                            if code == 0:
                                continue
                            term = query_terms[start + i]
                            if placed:
                                value = value_of(
                                    data,
                                    halves,
                                    kind,
                                    at,
                                    entries,
                                    size,
                                    local,
                                    code,
                                    entry,
                                    term,
                                    chunk,
                                    code_values,
                                    exception_keys,
                                    exception_values,
                                )
                                score += query_weights[start + i] * np.float64(weights_of_values[value])
                            else:
                                length = lengths[chunk]
                                frequency = frequency_of(
                                    code,
                                    term,
                                    chunk,
                                    length_norm(length, k1, b, shard_mean),
                                    exception_keys,
                                    exception_values,
                                )
                                norm = length_norm(length, k1, b, mean)
                                score += query_weights[start + i] * (frequency / (frequency + norm))
                        if score > 0:
                            held[q] = offer(
                                heap_scores[q], heap_chunks[q], held[q], score, first_chunk + window_first + local
                            )
                # Chunks below the first floor may still belong to the best, now that these are known.
                ceiling = floor
                if held[q] == k:
                    floor = np.float32(max(0.0, heap_scores[q, 0] / largest - margin))
                else:
                    floor = np.float32(0)
                if floor >= ceiling:
                    break
            scores[: (size + STRIDE - 1) // STRIDE * STRIDE] = 0
