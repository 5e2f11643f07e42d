"""Numba kernels of the CPU path: attention of single tokens over paged keys and values, and nucleus sampling.

Decoding is where a small machine spends its time. Padding and concatenating caches costs more than attention itself
there, so each query token reads its own blocks in place, whatever the lengths of its neighbours.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

Array = np.ndarray[Any, Any]
NO_TOKEN, NOT_FINITE = -1, -2
"""What `sample` returns in place of a token."""
LARGEST = np.float32(1e30)
FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}
"""LLVM's fast-math flags but for the two that let it take NaN and infinity for impossible."""


@functools.cache
def attention_kernel(group: int, dim: int, block: int) -> Callable[..., None]:
    """Compile attention of single query tokens over paged keys and values, for one model's shape.

    group: query heads per key head; dim: head size; block: tokens a page. They are compile-time constants, so that
    the inner loops are unrolled vector code (twice as fast here as one kernel for all shapes).

    The kernel takes query, out [tokens, heads, dim]; keys, values [pages, kv_heads, block, dim]; tables [tokens, most
    pages], page numbers; lengths [tokens], how many positions each token attends to; scale; and the range of tokens to
    do, so that threads can share the work. Query head h reads key head h // group. It releases the GIL.
    """

    @numba.njit(nogil=True, fastmath=FAST, error_model="numpy")  # type: ignore[untyped-decorator, unused-ignore]
    def attend(
        query: Array,
        keys: Array,
        values: Array,
        tables: Array,
        lengths: Array,
        scale: float,
        out: Array,
        first: int,
        last: int,
    ) -> None:  # pragma: no cover - compiled
        longest = 0
        for i in range(first, last):
            longest = max(longest, lengths[i])
        weights = np.empty((longest, group), np.float32)
        q = np.empty((group, dim), np.float32)
        mixed = np.empty((group, dim), np.float32)
        share = np.empty(group, np.float32)
        for i in range(first, last):
            n = lengths[i]
            pages = (n + block - 1) // block
            for h in range(keys.shape[1]):
                for g in range(group):
                    for d in range(dim):
                        q[g, d] = query[i, h * group + g, d] * scale
                        mixed[g, d] = 0.0
                for j in range(pages):
                    page = tables[i, j]
                    for t in range(min(block, n - j * block)):
                        for g in range(group):
                            dot: Any = np.float32(0.0)
                            for d in range(dim):
                                dot += q[g, d] * keys[page, h, t, d]
                            weights[j * block + t, g] = dot
                for g in range(group):
                    top = weights[0, g]
                    for t in range(n):
                        top = max(top, weights[t, g])
                    total: Any = np.float32(0.0)
                    for t in range(n):
                        weight: Any = np.float32(math.exp(weights[t, g] - top))
                        weights[t, g] = weight
                        total += weight
                    share[g] = np.float32(1.0) / total
                for j in range(pages):
                    page = tables[i, j]
                    for t in range(min(block, n - j * block)):
                        for g in range(group):
                            weight = weights[j * block + t, g]
                            for d in range(dim):
                                mixed[g, d] += weight * values[page, h, t, d]
                for g in range(group):
                    for d in range(dim):
                        out[i, h * group + g, d] = mixed[g, d] * share[g]

    return attend  # type: ignore[no-any-return, unused-ignore]


@numba.njit(nogil=True, error_model="numpy", cache=True)
def sample(
    logits: Array, mask: Array, masked: bool, temperature: float, top_p: float, draw: float, scratch: Array
) -> int:  # pragma: no cover - compiled
    """One token of a row of logits [vocabulary] by nucleus sampling (Holtzman et al. 2020), or the best at T = 0.

    `mask` holds 32 tokens a word, as xgrammar writes it; only tokens whose bit is set are possible when `masked`.
    `draw` is uniform in [0, 1). `scratch` is a float32 row to write in. The nucleus is exact: the candidate set is
    widened until it holds top_p of the mass. Ties go to the lower token id. A logit of -inf rules its token out.

    Returns NO_TOKEN where the mask allows none, and NOT_FINITE where the logits are no distribution: a row with NaN or
    +inf anywhere, or whose possible tokens are all ruled out. Only tokens that all rows hold are looked at.
    """
    size = min(logits.shape[0], scratch.shape[0])
    if masked:
        size = min(size, mask.shape[0] * 32)
    best = NO_TOKEN
    for v in range(size):
        if not logits[v] < np.inf:
            return NOT_FINITE
        if masked and not (mask[v >> 5] >> (v & 31)) & 1:
            continue
        if best < 0 or logits[v] > logits[best]:
            best = v
    if best < 0:
        return NO_TOKEN
    top = logits[best]
    if top == -np.inf:
        return NOT_FINITE
    if not temperature > 0.0:
        return best
    inverse = min(np.float32(1.0 / temperature), LARGEST)  # infinity times 0 is no number
    total = 0.0
    for v in range(size):
        if masked and not (mask[v >> 5] >> (v & 31)) & 1:
            scratch[v] = 0.0
            continue
        weight: Any = np.float32(math.exp((logits[v] - top) * inverse)) if logits[v] > -np.inf else np.float32(0.0)
        scratch[v] = weight
        total += weight
    goal = top_p * total
    cut: Any = np.float32(1e-2)
    while True:
        held = 0.0
        count = 0
        for v in range(size):
            if scratch[v] >= cut and scratch[v] > 0.0:
                held += scratch[v]
                count += 1
        if held >= goal or cut == 0.0:
            break
        cut = cut * np.float32(0.05) if cut > 1e-12 else np.float32(0.0)
    ids = np.empty(count, np.int64)
    weights = np.empty(count, np.float64)
    at = 0
    for v in range(size):
        if scratch[v] >= cut and scratch[v] > 0.0:
            ids[at] = v
            weights[at] = -scratch[v]
            at += 1
    order = np.argsort(weights, kind="mergesort")
    nucleus = 0.0
    kept = 0
    for k in range(count):
        nucleus -= weights[order[k]]
        kept = k + 1
        if nucleus >= goal:
            break
    aim = draw * nucleus
    reached = 0.0
    for k in range(kept):
        reached -= weights[order[k]]
        if reached > aim:
            return ids[order[k]]
    return ids[order[kept - 1]]


@numba.njit(nogil=True, fastmath=FAST, error_model="numpy", cache=True)
def log_probability(logits: Array, token: int) -> float:  # pragma: no cover - compiled
    """log softmax(logits)[token] of a row of logits, of which some may be -inf."""
    top = logits[0]
    for v in range(logits.shape[0]):
        top = max(top, logits[v])
    total = 0.0
    for v in range(logits.shape[0]):
        total += math.exp(logits[v] - top)
    return logits[token] - top - math.log(total)
