"""The posting file of a shard: for every term the chunks that have it, in about three bytes a posting.

Chunks are numbered from 0 in a shard and grouped in windows of 2^15, so that the scores of a window stay in a core's
cache. The file is a sequence of regions, one per term, each aligned to 4 bytes, little-endian. A region is

    a short list     uint32 count (< 2^31), uint32 chunk[count], uint8 code[count], places
    or blocks        uint32 2^31 + blocks, uint32 count, uint32 record[blocks], then every block's data

whichever is smaller. One block holds the postings of one window; its record has the kind in bits 30 and 31, the window
in bits 16 to 29 and one less than its entries in bits 0 to 15. Its data, padded to 2 bytes, by kind:

    SPARSE    uint16 chunk in window[n], uint8 code[n], places
    GAPS      uint16 skip[ceil(n / 64)], uint8 gap[n], uint8 code[n], places: each chunk is the one before plus its gap,
              starting from -1; skip[j] is the chunk of entry 64 j; an entry of code 0 is no posting and only bridges
    DENSE     uint8 code[chunks in this window], uint16 rank[ceil(that / 512)], places: n counts the codes above 0,
              rank[j] those before chunk 512 j

`places` are the 4 bits a posting that retrieval/codes.py describes, two to a byte, the first one low; BM25 has none,
and no ranks. GAPS is the smallest for most lists, DENSE the fastest where a window is a quarter full or more.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from retrieval.codes import FAR, frequency_code, length_norm, smallest_frequency

WINDOW_BITS = 15
WINDOW = 1 << WINDOW_BITS
BLOCKS = 1 << 31
SHORT, SPARSE, GAPS, DENSE = 0, 1, 2, 3
SKIP = 64
RANK = 512


@njit(nogil=True, cache=True, inline="always")
def block_bytes(kind: int, entries: int, window_chunks: int, placed: bool) -> int:
    """Bytes of a block's data, padding included."""
    places = (entries + 1) // 2 if placed else 0
    if kind == SPARSE:
        size = 3 * entries + places
    elif kind == GAPS:
        size = 2 * ((entries + SKIP - 1) // SKIP) + 2 * entries + places
    else:
        ranks = (window_chunks + RANK - 1) // RANK if placed else 0
        # Ranks are uint16, so they begin at an even byte.
        size = (window_chunks + 1) // 2 * 2 + 2 * ranks + places
    return (size + 1) // 2 * 2


@njit(nogil=True, cache=True, inline="always")
def list_size(words: Any, region: int) -> int:
    """Number of postings in the region that begins at word `region` of the posting file."""
    head = words[region]
    return words[region + 1] if head >= BLOCKS else head


@njit(nogil=True, cache=True)
def find_entry(data: Any, halves: Any, kind: int, at: int, entries: int, window_chunks: int, chunk: int) -> Any:
    """Where a chunk stands in a block: (its code or 0, which entry it is).

    `at` is the block's first byte; `chunk` counts from the window's first. For DENSE the entry is not computed (-1).
    """
    if kind == SPARSE:
        first = at >> 1
        low, high = 0, entries
        while low < high:
            middle = (low + high) >> 1
            if halves[first + middle] < chunk:
                low = middle + 1
            else:
                high = middle
        if low < entries and halves[first + low] == chunk:
            return int(data[at + 2 * entries + low]), low
        return 0, 0
    if kind == GAPS:
        first = at >> 1
        skips = (entries + SKIP - 1) // SKIP
        low, high = 0, skips
        while low < high:
            middle = (low + high) >> 1
            if halves[first + middle] <= chunk:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return 0, 0
        entry = (low - 1) * SKIP
        here = int(halves[first + low - 1])
        gaps = at + 2 * skips
        last = min(entry + SKIP, entries) - 1
        while here < chunk and entry < last:
            entry += 1
            here += data[gaps + entry]
        # A bridge may end on the chunk before its own entry does; no: gaps are at least 1, so each chunk comes once.
        return (int(data[gaps + entries + entry]) if here == chunk else 0), entry
    return int(data[at + chunk]), -1


@njit(nogil=True, cache=True)
def _exception(keys: Any, values: Any, key: int, otherwise: int) -> int:
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return int(values[low]) if low < len(keys) and keys[low] == key else otherwise


@njit(nogil=True, cache=True)
def frequency_of(code: int, term: int, chunk: int, norm: float, keys: Any, values: Any) -> int:
    """The term frequency behind a BM25 posting's code."""
    frequency = smallest_frequency(code, norm)
    if frequency_code(frequency + 1, norm) == code:
        return _exception(keys, values, (term << 32) | chunk, frequency)
    return frequency


@njit(nogil=True, cache=True)
def value_of(
    data: Any,
    halves: Any,
    kind: int,
    at: int,
    entries: int,
    window_chunks: int,
    local: int,
    code: int,
    entry: int,
    term: int,
    chunk: int,
    code_values: Any,
    keys: Any,
    values: Any,
) -> int:
    """The value number behind a learned sparse posting's code; code_values[c] is the first number of code c."""
    if kind == DENSE:
        ranks = at + (window_chunks + 1) // 2 * 2
        entry = int(halves[(ranks >> 1) + local // RANK])
        for i in range(at + local // RANK * RANK, at + local):
            entry += data[i] != 0
        places = ranks + 2 * ((window_chunks + RANK - 1) // RANK)
    elif kind == GAPS:
        places = at + 2 * ((entries + SKIP - 1) // SKIP) + 2 * entries
    elif kind == SPARSE:
        places = at + 3 * entries
    else:
        places = at + 5 * entries
    place = (data[places + (entry >> 1)] >> (4 * (entry & 1))) & 15
    if place == FAR:
        return _exception(keys, values, (term << 32) | chunk, 0)
    return int(code_values[code]) + int(place)


__all__ = [
    "BLOCKS",
    "DENSE",
    "GAPS",
    "RANK",
    "SHORT",
    "SKIP",
    "SPARSE",
    "WINDOW",
    "WINDOW_BITS",
    "block_bytes",
    "find_entry",
    "frequency_of",
    "length_norm",
    "list_size",
    "value_of",
]
