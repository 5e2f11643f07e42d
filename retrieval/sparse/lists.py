"""A query's posting lists, window by window: what a list has in a window is added to the upper bounds of its chunks."""

from __future__ import annotations

import numpy as np

from ratchet.core.numba_cache import inner
from ratchet.retrieval.arrays import Bytes, Files, Halves, Numbers
from ratchet.retrieval.sparse.bits import AHEAD, STRIP, add_bits, increase
from ratchet.retrieval.sparse.lows import read_lows
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
    widened = room.view(np.uint8)
    for first in range(0, size, STRIP):
        for i in range(len(lists)):
            if lists[i, KIND] == BITS and weights[i] > 0:
                end = min(first + STRIP, size)
                lists[i, CODES] = add_bits(
                    bounds, files[0], lists[i, AT], lists[i, CODES], first, end, weights[i], steps[i], widened, narrow
                )
