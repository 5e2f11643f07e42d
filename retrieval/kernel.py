"""The search kernel: a sparse dot product over term-major postings, and the exact top of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

# Chunks are scored in windows, so that the scores stay in the second-level cache however large the corpus is.
WINDOW = 1 << 16


@njit(nogil=True, cache=True)
def _worse(score: Any, chunk: Any, other_score: Any, other_chunk: Any) -> Any:
    """Whether the first of two hits ranks behind the second: by score, then the later chunk."""
    return score < other_score or (score == other_score and chunk > other_chunk)


@njit(nogil=True, cache=True)
def _sift_down(scores: Any, chunks: Any, size: int) -> None:
    """Restore the heap (worst hit at the root) after its root was replaced."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size and _worse(scores[child + 1], chunks[child + 1], scores[child], chunks[child]):
            child += 1
        if _worse(scores[at], chunks[at], scores[child], chunks[child]):
            return
        scores[at], scores[child] = scores[child], scores[at]
        chunks[at], chunks[child] = chunks[child], chunks[at]
        at = child


@njit(nogil=True, cache=True)
def _sift_up(scores: Any, chunks: Any, at: int) -> None:
    while at > 0:
        parent = (at - 1) // 2
        if _worse(scores[parent], chunks[parent], scores[at], chunks[at]):
            return
        scores[at], scores[parent] = scores[parent], scores[at]
        chunks[at], chunks[parent] = chunks[parent], chunks[at]
        at = parent


@njit(nogil=True, cache=True)
def top_chunks(
    starts: Any, ends: Any, query_weights: Any, posting_chunks: Any, posting_weights: Any, chunk_count: int, keep: int
) -> Any:
    """The `keep` chunks with the highest scores above 0, in no order: (float32 scores, int64 chunks).

    Query term i has the postings starts[i] .. ends[i] - 1 (int64, chunks ascending) and the weight query_weights[i]
    (float32). A chunk's score is the float32 sum of query weight times posting weight, added in the order of the
    query's terms, so it is the same on any number of threads. Everything it writes to is its own: threads may call
    it at once, and it holds no lock on the interpreter.
    """
    window = min(WINDOW, chunk_count)
    scores = np.zeros(window, np.float32)
    cursors = starts.copy()
    best_scores = np.empty(keep, np.float32)
    best_chunks = np.empty(keep, np.int64)
    held = 0
    for first in range(0, chunk_count, window):
        last = min(first + window, chunk_count)
        touched = False
        for i in range(len(cursors)):
            at = cursors[i]
            while at < ends[i] and posting_chunks[at] < last:
                scores[posting_chunks[at] - first] += query_weights[i] * posting_weights[at]
                at += 1
            touched |= at > cursors[i]
            cursors[i] = at
        if not touched:
            continue
        for i in range(last - first):
            score = scores[i]
            if score > 0:
                scores[i] = 0
                if held < keep:
                    best_scores[held] = score
                    best_chunks[held] = first + i
                    _sift_up(best_scores, best_chunks, held)
                    held += 1
                elif score > best_scores[0]:  # an equal score comes later in chunk order, so it ranks behind
                    best_scores[0] = score
                    best_chunks[0] = first + i
                    _sift_down(best_scores, best_chunks, held)
    return best_scores[:held], best_chunks[:held]
