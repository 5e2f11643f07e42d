"""A query's posting lists, window by window: what a list has in a window is added to the upper bounds of its chunks.

Coarse bounds of one byte say which chunks of a window can still belong to the best, once these are k. They are as fine
as they can be for that question: SATURATED stands for the k-th best score so far, and sums stop there. So a chunk whose
sum stays below cannot belong, and only the others are looked at one by one. Adding a BITS block takes a third of the
instructions that bounds of 16 bits take: the sums of 256 chunks stay in registers while all lists are added, a table of
64 bytes in a register turns codes into bounds, and the comparison needs no pass of its own.
"""

from __future__ import annotations

import numpy as np

from ratchet.core.numba_cache import inner
from ratchet.retrieval.arrays import Bytes, Files, Halves, Numbers, Places, Screen
from ratchet.retrieval.sparse.bits import AHEAD, CLASSES, SATURATED, STRIP, add_bits, increase, screen_bits
from ratchet.retrieval.sparse.postings import (
    BITS,
    BLOCKS,
    SHORT,
    WINDOW,
    WINDOW_BITS,
    block_bytes,
    code_at,
    code_bytes,
    head_bytes,
    read_lows,
)
from ratchet.retrieval.sparse.reading import fetch, load_8
from ratchet.retrieval.sparse.selection import ABSENT, AT, BASE, BLOCK, CODES, ENTRIES, KIND, LEFT, NEXT, UPCOMING

WINDOW_OF_RECORD = 0x3FFF


@inner
def _add_lows(
    bounds: Halves | Bytes, data: Bytes, row: Numbers, size: int, steps: Halves | Bytes, chunks: Halves, narrow: bool
) -> None:
    """Add the bounds of a row's LOWS block to the window's; steps[c] is the bound of code c."""
    codes, entries = row[BASE], row[ENTRIES]
    read_lows(data, row[AT], entries, size, chunks)
    # An odd code at the end is added by itself.
    pairs = entries >> 1 if narrow else 0
    for i in range(pairs):
        pair = load_8(data, codes + i)
        increase(bounds, chunks[2 * i], steps[pair & 15])
        increase(bounds, chunks[2 * i + 1], steps[pair >> 4])
    for i in range(2 * pairs, entries):
        increase(bounds, chunks[i], steps[code_at(data, codes, i, narrow)])


@inner
def open_list(files: Files, region: int, row: Numbers, windows: tuple[int, int], narrow: bool) -> None:
    """Set a row of the table of lists to the list's first block in the range of windows."""
    words = files[1]
    row[KIND], row[LEFT], row[UPCOMING] = ABSENT, 0, windows[1]
    if region < 0:
        return
    head = np.int64(words[region])
    if head < BLOCKS:
        row[KIND], row[AT], row[ENTRIES] = SHORT, 4 * (region + 1), head
        row[BASE], row[BLOCK], row[NEXT] = 4 * (region + 1 + head), region + 1, 0
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
        row[NEXT] += block_bytes(record >> 30, (record & 0xFFFF) + 1, np.int64(WINDOW), narrow)
        row[BLOCK] += 1
        row[LEFT] -= 1


@inner
def add_window(
    files: Files,
    row: Numbers,
    window: int,
    size: int,
    bounds: Halves | Bytes,
    steps: Halves | Bytes,
    weight: int,
    end: int,
    chunks: Halves,
    narrow: bool,
) -> int:
    """Add what a list has in a window, all but a BITS block, and move its row on; returns how many postings it has.

    chunks: room for the chunks of a block.
    """
    data, words = files
    if row[UPCOMING] != window:
        if row[KIND] != SHORT:
            row[KIND] = ABSENT
        return 0
    if row[KIND] == SHORT:
        at, before = row[NEXT], row[NEXT]
        while at < row[ENTRIES] and words[row[BLOCK] + at] >> WINDOW_BITS == window:
            increase(bounds, words[row[BLOCK] + at] & (WINDOW - 1), steps[code_at(data, row[BASE], at, narrow)])
            at += 1
        row[NEXT] = at
        row[UPCOMING] = words[row[BLOCK] + at] >> WINDOW_BITS if at < row[ENTRIES] else end
        return at - before
    record = np.int64(words[row[BLOCK]])
    row[KIND], row[AT], row[ENTRIES] = record >> 30, row[NEXT], (record & 0xFFFF) + 1
    row[BASE] = row[AT] + head_bytes(row[KIND], row[ENTRIES], size)
    if row[KIND] == BITS:
        row[CODES] = row[BASE]
        # It is read when all other blocks have been added: by then its beginning can be here.
        for ahead in range(0, AHEAD, 64):
            fetch(data, row[AT] + ahead)
            fetch(data, row[CODES] + ahead)
    elif weight > 0:
        _add_lows(bounds, data, row, size, steps, chunks, narrow)
    row[NEXT] = row[BASE] + code_bytes(row[ENTRIES], narrow)
    row[BLOCK] += 1
    row[LEFT] -= 1
    row[UPCOMING] = (words[row[BLOCK]] >> 16) & WINDOW_OF_RECORD if row[LEFT] > 0 else end
    return row[ENTRIES]


@inner
def add_bits_blocks(
    files: Files,
    lists: Numbers,
    size: int,
    bounds: Halves,
    weights: Numbers,
    steps: Halves,
    room: Halves,
    narrow: bool,
) -> None:
    """Add the BITS blocks of all lists in a window, strip by strip.

    steps[i, c] is the bound of list i's code c; room: as for `add_window`.
    """
    unpacked = room.view(np.uint8)
    for first in range(0, size, STRIP):
        for i in range(len(lists)):
            if lists[i, KIND] == BITS and weights[i] > 0:
                end = min(first + STRIP, size)
                lists[i, CODES] = add_bits(
                    bounds, files[0], lists[i, AT], lists[i, CODES], first, end, weights[i], steps[i], unpacked, narrow
                )


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
