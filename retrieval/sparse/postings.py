"""The posting file of a shard: for every term the chunks that have it, in about three bytes a posting.

Chunks are numbered from 0 in a shard and grouped in windows of 2^16, so that the bounds of a window stay in a core's
second-level cache. The file is a sequence of regions, one per term, each aligned to 4 bytes, little-endian, with 64
bytes of padding at the end, which vector instructions may read. A region is

    a short list     uint32 count (< 2^31), uint32 chunk[count], uint8 code[count], places
    or blocks        uint32 2^31 + blocks, uint32 count, uint32 record[blocks], then every block's data

whichever is smaller. One block holds the postings of one window; its record has the kind in bits 30 and 31, the window
in bits 16 to 29 and one less than its entries in bits 0 to 15. Its data, padded to 2 bytes, by kind:

    SPARSE    uint16 chunk in window[n], uint8 code[n], places
    GAPS      uint16 skip[ceil(n / 64)], uint8 gap[n], uint8 code[n], places: each chunk is the one before plus its gap,
              starting from -1; skip[j] is the chunk of entry 64 j; an entry of code 0 is no posting and only bridges
    BITS      uint64 mask[ceil(chunks in this window / 64)], uint16 rank[ceil(the same / 512)], uint8 code[n], places:
              bit i of mask[j] is set where chunk 64 j + i has a posting; rank[j] counts those before chunk 512 j

`places` are the 4 bits a posting that quantisation.py describes, two to a byte, the first one low; BM25 has none.
GAPS is the smallest for most lists; BITS is the smallest where more than an eighth of a window's chunks have a posting,
and the fastest from about a twelfth on.
"""

from __future__ import annotations

import mmap
from typing import TypeVar

import numpy as np

from ratchet.numba_cache import inner
from retrieval.arrays import Bm25Numbers, Bytes, Files, Numbers, Pointer, Store, Tables, Words
from retrieval.shard_manifest import damaged
from retrieval.shards import Shard, mapping_of
from retrieval.sparse.bits import half_or_none, load_8, load_16, load_32, pointer, rank_in, sum_of_8, sums_before
from retrieval.sparse.quantisation import FAR, frequency_code, length_norm, smallest_frequency

WINDOW_BITS = 16
WINDOW = 1 << WINDOW_BITS
BLOCKS = 1 << 31
SHORT, SPARSE, GAPS, BITS = 0, 1, 2, 3
SKIP = 64
RANK = 512
# A window of which one chunk in FULL has a posting is stored as BITS even where that is larger: it is added faster.
FULL = 12
Array = TypeVar("Array", bound=np.ndarray)


@inner(inline="always")
def bits_head(window_chunks: int) -> int:
    """Bytes of masks and ranks, which stand before the codes of a block of kind BITS."""
    return 8 * ((window_chunks + 63) // 64) + 2 * ((window_chunks + RANK - 1) // RANK)


@inner(inline="always")
def block_bytes(kind: int, entries: int, window_chunks: int, placed: bool) -> int:
    """Bytes of a block's data, padding included."""
    places = (entries + 1) // 2 if placed else 0
    if kind == SPARSE:
        size = 3 * entries + places
    elif kind == GAPS:
        size = 2 * ((entries + SKIP - 1) // SKIP) + 2 * entries + places
    else:
        size = bits_head(window_chunks) + entries + places
    return (size + 1) // 2 * 2


@inner(forceinline=True)
def places_at(kind: int, at: int, entries: int, window_chunks: int) -> int:
    """The byte at which a block's places begin. `at` is its first byte, or a short list's first chunk number's."""
    if kind == SPARSE:
        return at + 3 * entries
    if kind == GAPS:
        return at + 2 * ((entries + SKIP - 1) // SKIP) + 2 * entries
    if kind == BITS:
        return at + bits_head(window_chunks) + entries
    return at + 5 * entries


@inner(forceinline=True)
def last_up_to(data: Bytes | Pointer, at: int, count: int, chunk: int) -> int:
    """Which of `count` ascending 16-bit numbers from byte `at` on is the last one up to `chunk`; 0 where none is."""
    low, left = 0, count
    while left > 1:
        half = left >> 1
        low += half_or_none(half, load_16(data, at + 2 * (low + half)), chunk)
        left -= half
    return low


@inner(forceinline=True)
def find_entry(
    data: Bytes | Pointer, kind: int, at: int, entries: int, window_chunks: int, chunk: int
) -> tuple[int, int]:
    """Where a chunk stands in a block or a short list: (its code or 0, which entry it is).

    `data` is the posting file's bytes or a `pointer` to them; `at` is as for `places_at`; `chunk` counts from the
    window's first, in a short list from the shard's. Which entry it is matters only where postings have places.

    What is found decides no branch, which the processor would have to guess: it works on several look-ups at once.
    """
    if kind == GAPS:
        skips = (entries + SKIP - 1) // SKIP
        low = last_up_to(data, at, skips, chunk)
        here = load_16(data, at + 2 * low)
        gaps = at + 2 * skips + SKIP * low + 1
        # The eight gaps among which it must be, then how many of them do not reach it.
        reached, passed, start = here, 0, here
        for eight in range(SKIP // 8 - 1):
            reached += sum_of_8(data, gaps + 8 * eight)
            passed += 8 * (reached < chunk)
            start = reached if reached < chunk else start
        below, met = sums_before(data, gaps + passed, chunk - start)
        entry = SKIP * low + passed + below + (start < chunk)
        last = min(entry, entries - 1)
        there = (met | (here == chunk)) & (entry == last) & (here <= chunk)
        return load_8(data, at + 2 * skips + entries + last) * there, last
    if kind == BITS:
        ranks = at + 8 * ((window_chunks + 63) // 64)
        entry = load_16(data, ranks + 2 * (chunk // RANK))
        entry += rank_in(data, at + chunk // RANK * (RANK // 8), chunk % RANK)
        there = (load_8(data, at + (chunk >> 3)) >> (chunk & 7)) & 1
        return load_8(data, at + bits_head(window_chunks) + entry) * there, entry
    if kind == SPARSE:
        low = last_up_to(data, at, entries, chunk)
        there = load_16(data, at + 2 * low) == chunk
        return load_8(data, at + 2 * entries + low) * there, low
    low, left = 0, entries
    while left > 1:
        half = left >> 1
        low += half_or_none(half, load_32(data, at + 4 * (low + half)), chunk)
        left -= half
    there = load_32(data, at + 4 * low) == chunk
    return load_8(data, at + 4 * entries + low) * there, low


@inner
def exception(keys: Numbers | Pointer, values: Words | Pointer, count: int, key: int, otherwise: int) -> int:
    """The value of a key among so many keys, which ascend."""
    low, left = 0, count
    while left > 1:
        half = left >> 1
        low += half_or_none(half, keys[low + half], key)
        left -= half
    return int(values[low]) if left == 1 and keys[low] == key else otherwise


@inner(forceinline=True)
def store_of(files: Files, tables: Tables) -> Store:
    """The arrays of a shard as `posting_weight` takes them: pointers, the number of exceptions, and whether it is BM25.

    files: the posting file as (uint8, uint16, uint32) arrays. tables: (lengths, weights of value numbers, first value
    numbers of codes, exception keys, exception values); without lengths the index is a learned sparse one.
    """
    lengths, weights, code_values, keys, values = tables
    arrays = pointer(files[0]), pointer(lengths), pointer(weights), pointer(code_values), pointer(keys), pointer(values)
    return arrays, len(keys), len(lengths) > 0


@inner(forceinline=True)
def posting_weight(store: Store, bm25: Bm25Numbers, place: int, code: int, entry: int, term: int, chunk: int) -> float:
    """The exact weight behind a posting's code: float64.

    store: of `store_of`. bm25: (k1, b, mean length of the shard, of the index). `place` is where the block's places
    begin; `chunk` counts from the shard's first.
    """
    (data, lengths, weights, code_values, keys, values), exceptions, by_length = store
    if not by_length:
        step = (load_8(data, place + (entry >> 1)) >> (4 * (entry & 1))) & 15
        if step == FAR:
            return float(weights[exception(keys, values, exceptions, (term << 32) | chunk, np.int64(0))])
        return float(weights[code_values[code] + step])
    k1, b, shard_mean, mean = bm25
    norm = length_norm(lengths[chunk], k1, b, shard_mean)
    frequency = smallest_frequency(code, norm)
    if frequency_code(frequency + 1, norm) == code:
        frequency = exception(keys, values, exceptions, (term << 32) | chunk, frequency)
    return frequency / (frequency + length_norm(lengths[chunk], k1, b, mean))


class Postings:
    """One shard's posting file and what goes with it, as the kernel takes them."""

    def __init__(self, shard: Shard, bm25: bool) -> None:
        manifest = shard.manifest
        self.shard = shard
        data = shard.array("postings")
        self.words = data.view(np.uint32)
        self.regions = shard.array("regions")
        self.hashes = shard.array("term_hashes") if bm25 else read_only(np.empty(0, np.uint64))
        self.lengths = shard.array("lengths") if bm25 else read_only(np.empty(0, np.uint32))
        self.files = (data, data.view(np.uint16), self.words)
        self.tables = (
            self.lengths,
            read_only(np.zeros(1, np.float32)) if bm25 else shard.array("weights"),
            read_only(np.zeros(1, np.uint32)) if bm25 else shard.array("code_values"),
            shard.array("exception_keys"),
            shard.array("exception_values"),
        )
        self.windows = (len(shard) + WINDOW - 1) >> WINDOW_BITS
        self.mean_length = manifest.total_length / max(len(shard), 1) or 1.0
        # The kernel does not check bounds, so what would lead it astray is checked here as far as that is cheap.
        if (
            len(self.lengths) != bm25 * len(shard)
            or len(self.regions) != manifest.terms
            or (bm25 and len(self.hashes) != manifest.terms)
            or len(self.tables[3]) != len(self.tables[4])
        ):
            raise damaged(shard.folder, "its files do not fit together")

    def fetch(self, begins: Numbers, ends: Numbers) -> int:
        """Ask the system to read these regions now, all at once: it would otherwise read page after page. The bytes."""
        total = 0
        if not len(self.words):  # an empty file is not mapped
            return total
        mapped = mapping_of(self.files[0])
        for begin, end in zip(begins, ends, strict=True):
            if begin >= 0:
                start = 4 * int(begin) // mmap.PAGESIZE * mmap.PAGESIZE
                mapped.madvise(mmap.MADV_WILLNEED, start, 4 * int(end) - start)
                total += 4 * int(end) - start
        return total


def read_only(array: Array) -> Array:
    """The array, which can no longer be written to: the kernels are compiled for such arrays alone."""
    array.flags.writeable = False
    return array
