"""From sorted postings to the posting file that retrieval/sparse/postings.py describes."""

from __future__ import annotations

import numpy as np

from ratchet.core.numba_cache import inner, njit
from ratchet.retrieval.arrays import Bytes, Numbers, Words
from ratchet.retrieval.sparse.postings import (
    BITS,
    BLOCKS,
    FULL,
    LOWS,
    RANK,
    SAMPLE_BITS,
    WINDOW,
    WINDOW_BITS,
    block_bytes,
    code_bytes,
    head_bytes,
    lows_shape,
)
from ratchet.retrieval.sparse.quantisation import FAR, NARROW_LAST, frequency_code, length_norm, smallest_frequency

# Marks a value that goes to the exceptions. Values are smaller: frequencies in a chunk, and numbers of 16 bits.
EXCEPTION = np.uint32(1 << 31)


@inner
def _block_shape(chunks: Words, start: int, end: int, size: int, narrow: bool) -> tuple[int, int]:
    """(kind, entries) of the block of one window's postings start .. end - 1."""
    count = entries = end - start
    if narrow:
        group = start
        for i in range(start + 1, end + 1):
            if i == end or chunks[i] >> 6 != chunks[group] >> 6:
                entries += (i - group) & 1
                group = i
    bits = block_bytes(np.int64(BITS), entries, size, narrow)
    if count * FULL >= size or bits <= block_bytes(np.int64(LOWS), count, size, narrow):
        return BITS, entries
    return LOWS, count


@inner
def _put16(data: Bytes, at: int, value: int) -> None:
    data[at] = value & 255
    data[at + 1] = value >> 8


@inner
def _put32(data: Bytes, at: int, value: int) -> None:
    for i in range(4):
        data[at + i] = (value >> (8 * i)) & 255


@inner
def _put_bits(data: Bytes, at: int, bit: int, value: int) -> None:
    """Write a number at so many bits behind byte `at` of zeroed data."""
    at += bit >> 3
    value <<= bit & 7
    while value:
        data[at] |= value & 255
        value >>= 8
        at += 1


@inner
def _put_code(data: Bytes, codes: int, entries: int, entry: int, code: int, place: int) -> None:
    """Write an entry's code, and its place where it is not -1, to the codes of a block that begin at a byte."""
    if place < 0:
        _put_bits(data, codes, 4 * entry, code)
    else:
        data[codes + entry] = code
        _put_bits(data, codes + entries, 4 * entry, place)


@inner
def _put_block(
    data: Bytes, at: int, kind: int, entries: int, chunks: Words, codes: Bytes, places: Bytes, size: int
) -> None:
    """Write one window's postings at byte `at` of zeroed data. Without places (length 0) codes are narrow."""
    narrow = len(places) == 0
    count = len(chunks)
    first = at + head_bytes(kind, entries, size)
    width, marks, counts = lows_shape(entries, size)
    ranks = at + 8 * ((size + 63) // 64)
    entry, before = np.int64(0), np.int64(0)
    for i in range(count):
        here = chunks[i] & (WINDOW - 1)
        if kind == LOWS:
            bucket = here >> width
            _put_bits(data, at, entry + bucket, np.int64(1))
            _put_bits(data, at + marks + counts, entry * width, here & ((1 << width) - 1))
            for sample in range(before >> width >> SAMPLE_BITS, bucket >> SAMPLE_BITS):
                _put16(data, at + marks + 2 * sample, entry)
        else:
            if narrow and here >> 6 != before >> 6:
                entry += entry & 1
            data[at + (here >> 3)] |= 1 << (here & 7)
            for stride in range(before // RANK + 1, here // RANK + 1):
                _put16(data, ranks + 2 * stride, entry)
        _put_code(data, first, entries, entry, np.int64(codes[i]), np.int64(-1 if narrow else places[i]))
        before = here
        entry += 1
    if kind == LOWS:
        for sample in range(before >> width >> SAMPLE_BITS, counts // 2):
            _put16(data, at + marks + 2 * sample, entry)
    else:
        for stride in range(before // RANK + 1, (size + RANK - 1) // RANK):
            _put16(data, ranks + 2 * stride, entries)


@njit(cache=True)
def encode_lists(
    offsets: Numbers, chunks: Words, codes: Bytes, places: Bytes, chunk_count: int, data: Bytes, regions: Numbers
) -> int:
    """Write the regions of some terms into data; returns the bytes used.

    Term t has the postings offsets[t] .. offsets[t + 1] - 1 of chunks (ascending), codes (uint8) and places (uint8, or
    length 0, and codes narrow). regions[t] becomes the word at which it begins, or -1 for a term without postings.
    `data` must hold `max_region_bytes(postings, terms)` bytes.
    """
    narrow = len(places) == 0
    at = np.int64(0)
    kinds = np.empty((chunk_count >> WINDOW_BITS) + 1, np.int64)
    entries = np.empty_like(kinds)
    for t in range(len(offsets) - 1):
        start, end = offsets[t], offsets[t + 1]
        count = end - start
        regions[t] = -1
        if count == 0:
            continue
        regions[t] = at >> 2
        short = 4 + 4 * count + code_bytes(count, narrow)
        blocks = 0
        size_of_blocks = 8
        i = start
        while i < end and size_of_blocks < short:
            window = chunks[i] >> WINDOW_BITS
            first = i
            while i < end and chunks[i] >> WINDOW_BITS == window:
                i += 1
            size = min(WINDOW, chunk_count - (window << WINDOW_BITS))
            kinds[blocks], entries[blocks] = _block_shape(chunks, first, i, size, narrow)
            size_of_blocks += 4 + block_bytes(kinds[blocks], entries[blocks], size, narrow)
            blocks += 1
        if size_of_blocks >= short:
            data[at : at + short + 3] = 0
            _put32(data, at, count)
            for i in range(count):
                _put32(data, at + 4 + 4 * i, np.int64(chunks[start + i]))
                place = np.int64(-1 if narrow else places[start + i])
                _put_code(data, at + 4 + 4 * count, count, i, np.int64(codes[start + i]), place)
            at += short
        else:
            data[at : at + size_of_blocks + 3] = 0
            _put32(data, at, BLOCKS + blocks)
            _put32(data, at + 4, count)
            body = at + 8 + 4 * blocks
            i = start
            for block in range(blocks):
                window = chunks[i] >> WINDOW_BITS
                first = i
                while i < end and chunks[i] >> WINDOW_BITS == window:
                    i += 1
                size = min(WINDOW, chunk_count - (window << WINDOW_BITS))
                kind = kinds[block]
                _put32(data, at + 8 + 4 * block, (kind << 30) | (window << 16) | (entries[block] - 1))
                of_block = places if narrow else places[first:i]
                _put_block(data, body, kind, entries[block], chunks[first:i], codes[first:i], of_block, size)
                body += block_bytes(kind, entries[block], size, narrow)
            at = body
        at = (at + 3) // 4 * 4
    return int(at)


def max_region_bytes(postings: int, terms: int) -> int:
    """Bytes that are enough for the regions of so many postings of so many terms: none is larger than a short list."""
    return 6 * postings + 16 * terms


@njit(nogil=True, cache=True)
def single_codes(lengths: Words, k1: float, b: float, mean_length: float, codes: Bytes) -> None:
    """For every chunk the code of a term that it has once."""
    for chunk in range(len(lengths)):
        codes[chunk] = frequency_code(np.int64(1), length_norm(lengths[chunk], k1, b, mean_length))


@njit(nogil=True, cache=True)
def frequency_codes(
    first: int, bounds: Numbers, chunks: Words, frequencies: Words, once: Bytes, lengths: Words, k1: float, b: float,
    mean_length: float, codes: Bytes,
) -> tuple[Numbers, Words]:  # fmt: skip
    """The codes of BM25 postings, and (keys, frequencies) of the exceptions in the postings' order.

    Term first + t has the postings bounds[t] .. bounds[t + 1] - 1; `once`: as `single_codes` fills it.
    """
    far = np.int64(0)
    for i in range(len(chunks)):
        chunk = chunks[i]
        frequency = np.int64(frequencies[i])
        if frequency == 1:
            codes[i] = once[chunk]
            continue
        norm = length_norm(lengths[chunk], k1, b, mean_length)
        codes[i] = frequency_code(frequency, norm)
        # Where the norm is 0 every frequency has the weight 1.
        if norm > 0 and codes[i] == NARROW_LAST and frequency > smallest_frequency(np.int64(NARROW_LAST), norm):
            frequencies[i] = EXCEPTION | frequency
            far += 1
    return _exceptions(first, bounds, chunks, frequencies, far)


@njit(nogil=True, cache=True)
def value_places(
    first: int, bounds: Numbers, chunks: Words, numbers: Words, codes_of_values: Bytes, first_of_codes: Words,
    codes: Bytes, places: Bytes,
) -> tuple[Numbers, Words]:  # fmt: skip
    """Codes and places of learned sparse postings, and (keys, value numbers) of the exceptions in their order.

    Term first + t has the postings bounds[t] .. bounds[t + 1] - 1.
    """
    far = np.int64(0)
    for i in range(len(numbers)):
        code = codes_of_values[numbers[i]]
        codes[i] = code
        place = numbers[i] - first_of_codes[code]
        places[i] = min(place, FAR)
        if place >= FAR:
            numbers[i] |= EXCEPTION
            far += 1
    return _exceptions(first, bounds, chunks, numbers, far)


@inner
def _exceptions(first: int, bounds: Numbers, chunks: Words, values: Words, count: int) -> tuple[Numbers, Words]:
    """(keys, values) of the `count` postings whose values are marked as EXCEPTION."""
    keys = np.empty(count, np.int64)
    exact = np.empty(count, np.uint32)
    at = 0
    for term in range(len(bounds) - 1):
        for i in range(bounds[term], bounds[term + 1]):
            if values[i] & EXCEPTION:
                keys[at] = (np.int64(first + term) << 32) | np.int64(chunks[i])
                exact[at] = values[i] ^ EXCEPTION
                at += 1
    return keys, exact
