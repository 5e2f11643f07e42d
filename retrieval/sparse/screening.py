"""Coarse bounds of one byte: which chunks of a window can still belong to the best, once these are k.

The bounds are as fine as they can be for that question: SATURATED stands for the k-th best score so far, and sums stop
there. So a chunk whose sum stays below cannot belong, and only the others are looked at one by one. Adding a BITS block
takes a third of the instructions that bounds of 16 bits take: the sums of 256 chunks stay in registers while all lists
are added, a table of 64 bytes in a register turns codes into bounds, and the comparison needs no pass of its own.
"""

from __future__ import annotations

import numpy as np

from ratchet.core.numba_cache import inner
from ratchet.retrieval.arrays import Bytes, Files, Halves, Numbers, Places, Screen
from ratchet.retrieval.sparse.bits import CLASSES, SATURATED, screen_bits
from ratchet.retrieval.sparse.postings import BITS
from ratchet.retrieval.sparse.selection import AT, CODES, KIND


@inner
def coarse_steps(bounds: Halves, scale: float, best: float, steps: Bytes, tables: Bytes) -> None:
    """Set steps[i, c] (uint8) to the coarse bound of code c in list i, where `best` is the k-th best score so far.

    bounds[i, c]: its bound of 16 bits, 0 where it has none; `scale`: what a bound of 1 is worth. tables[i, c >> 2]: the
    coarse bound of the largest code of its class; of narrow codes, which are 16, tables[i, c + 16 j] for all j.
    """
    codes = bounds.shape[1]
    # What is rounded to float64 here is less than this.
    unit = SATURATED * scale / (best * (1 - 1e-9))
    for i in range(len(bounds)):
        for c in range(1, codes):
            steps[i, c] = np.uint8(min(bounds[i, c] * unit + 1.0, 255.0)) if bounds[i, c] > 0 else np.uint8(0)
        for j in range(CLASSES):
            tables[i, j] = steps[i, 4 * j + 3 if codes > CLASSES else j % codes]


@inner
def screen_window(
    files: Files,
    lists: Numbers,
    weights: Numbers,
    size: int,
    screen: Screen,
    candidates: Places,
    narrow: bool,
) -> int:
    """Add the BITS blocks of all lists; returns how many candidates there are, ascending. Coarse bounds are 0 then."""
    bounds, _, tables, masks, codes, chosen = screen
    count = np.int64(0)
    for i in range(len(lists)):
        if lists[i, KIND] == BITS and weights[i] > 0:
            masks[count], codes[count] = lists[i, AT], lists[i, CODES]
            for j in range(CLASSES):
                chosen[count, j] = tables[i, j]
            count += 1
    return screen_bits(bounds, files[0], masks, codes, count, chosen, size, candidates, narrow)
