"""A query's posting lists, window by window: what a list has in a window is added to the upper bounds of its chunks."""

from __future__ import annotations

import numpy as np

from ratchet.numba_cache import inner
from retrieval.arrays import Bytes, Files, Halves, Numbers
from retrieval.sparse.bits import AHEAD, STRIP, add_bits, fetch, increase
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
)
from retrieval.sparse.selection import ABSENT, AT, BLOCK, CODES, ENTRIES, KIND, LEFT, NEXT, UPCOMING

WINDOW_OF_RECORD = 0x3FFF


@inner
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


@inner
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


@inner
def add_bits_blocks(files: Files, lists: Numbers, size: int, bounds: Halves, weights: Numbers) -> None:
    """Add the BITS blocks of all lists in a window, strip by strip."""
    for first in range(0, size, STRIP):
        for i in range(len(lists)):
            if lists[i, KIND] == BITS and weights[i] > 0:
                end = min(first + STRIP, size)
                lists[i, CODES] = add_bits(bounds, files[0], lists[i, AT], lists[i, CODES], first, end, weights[i])
