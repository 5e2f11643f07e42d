"""The best hits of a query as a heap in two arrays, the worst at the root."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(nogil=True, cache=True, inline="always")
def worse(score: float, chunk: int, other_score: float, other_chunk: int) -> bool:
    """Whether the first of two hits ranks behind the second: by score, then the later chunk."""
    return score < other_score or (score == other_score and chunk > other_chunk)


@njit(nogil=True, cache=True)
def offer(scores: Any, chunks: Any, held: int, score: float, chunk: int) -> int:
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
