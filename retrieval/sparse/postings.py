"""The posting file of a shard: for every term the chunks that have it, in less than two bytes a posting of BM25.

Chunks are numbered from 0 in a shard and grouped in windows of 2^16, so that the bounds of a window stay in a core's
second-level cache. The file is a sequence of regions, one per term, each aligned to 4 bytes, little-endian, with 64
bytes of padding at the end, which vector instructions may read. A region is

    a short list     uint32 count (< 2^31), uint32 chunk[count], codes
    or blocks        uint32 2^31 + blocks, uint32 count, uint32 record[blocks], then every block's data

whichever is smaller. One block holds the postings of one window; its record has the kind in bits 30 and 31, the window
in bits 16 to 29 and one less than its entries in bits 0 to 15. Its data are the numbers of its chunks in the window,
then their codes; by kind:

    LOWS      uint8 marks[ceil((n + buckets) / 8)], uint16 before[(buckets - 1) // 256], uint8 lows[ceil(n width / 8)]:
              the `width` low bits of every number; the others, its bucket, are coded as by Elias and Fano: bit i +
              bucket of the marks is set for entry i; before[j] counts the entries before bucket 256 (j + 1)
    BITS      uint64 mask[ceil(chunks in this window / 64)], uint16 rank[ceil(the same / 512)]: bit i of mask[j] is set
              where chunk 64 j + i has a posting; rank[j] counts the entries before chunk 512 j

The codes of BM25 are narrow, two to a byte, the first one low. In BITS, every mask begins with a new byte: where it has
an odd number of chunks, one more entry follows, which is no posting. Codes of learned sparse indexes are a byte each,
and the 4 bits a posting that quantisation.py describes, its `place`, follow all codes of a block, two to a byte.

LOWS is the smallest for most lists. BITS is added faster and stands where one chunk in FULL has a posting.

Blocks of kind LOWS: their shape, all of their chunks, and one chunk's entry.

All chunks are read with vector instructions. Where the processor has AVX-512 with VBMI and VBMI2, one instruction lists
the marks of 64 bits, and two take the low bits of 32 entries apart, of whatever width. Elsewhere a table lists the
marks of 8 bits, and shifts take the low bits of 4 entries apart."""

from __future__ import annotations

import mmap
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ratchet.core.llvm import call, element, load, splat, store
from ratchet.core.numba_cache import inner
from ratchet.retrieval.arrays import Bm25Numbers, Bytes, Files, Halves, Numbers, Pointer, Store, Tables, Words
from ratchet.retrieval.index import Shard, mapping_of
from ratchet.retrieval.layout import damaged
from ratchet.retrieval.sparse.bits import SCREENS
from ratchet.retrieval.sparse.quantisation import FAR, NARROW_LAST, length_norm, smallest_frequency
from ratchet.retrieval.sparse.reading import (
    count_bits,
    half_or_none,
    load_8,
    load_16,
    load_32,
    load_64,
    nth_bit,
    pointer,
    rank_in,
    top_bit,
)

# Entries are counted before every so many buckets, as a power of two.
SAMPLE_BITS = 8
MOST_WIDTH = 15
# Entries that are written past a block's last one at most.
OVERWRITE = 64
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def _tables() -> tuple[np.ndarray, np.ndarray]:
    """uint8 [MOST_WIDTH + 1, 64] twice, for 32 entries of a width, four to each 8 bytes: the bytes that hold an entry's
    low bits, and how far these are to be shifted down, for the lower and for the upper byte of each."""
    width = np.arange(MOST_WIDTH + 1)[:, None]
    byte = np.arange(64)
    first = 4 * width * (byte // 8)
    shifts = first % 8 + width * (byte % 8 // 2) + 8 * (byte % 2)
    return (first // 8 + byte % 8).astype(np.uint8), shifts.astype(np.uint8)


def _places() -> np.ndarray:
    """uint8 [256, 8]: where the bits are that are set in a byte, and then 0."""
    return np.array([([i for i in range(8) if byte >> i & 1] + 8 * [0])[:8] for byte in range(256)], np.uint8)


ORDERS, SHIFTS = _tables()
PLACES = _places()


@inner(forceinline=True)
def lows_shape(entries: int, window_chunks: int) -> tuple[int, int, int]:
    """The width of low bits, and the bytes of the marks, and of the counts after them."""
    # The largest width with entries << width <= window_chunks, found without a division.
    width = top_bit(window_chunks) - top_bit(entries)
    width = min(max(width - (entries << width > window_chunks), 0), MOST_WIDTH)
    last_bucket = (window_chunks - 1) >> width
    return width, (entries + last_bucket + 8) >> 3, 2 * (last_bucket >> SAMPLE_BITS)


@inner(forceinline=True)
def _low_part(data: Bytes | Pointer, lows: int, entry: int, width: int) -> int:
    bit = entry * width
    return (load_32(data, lows + (bit >> 3)) >> (bit & 7)) & ((1 << width) - 1)


def _join(builder: Any, place: Any, first: Any, width: Any, low: Any) -> None:
    """Where the places of the marks of entries from `first` on stand, write their chunks, given their low bits."""
    kind = low.type
    width = splat(builder, builder.trunc(width, I16), kind.count)
    mask = builder.not_(builder.shl(ir.Constant(kind, [0xFFFF] * kind.count), width))
    numbers = splat(builder, builder.trunc(first, I16), kind.count)
    numbers = builder.add(numbers, ir.Constant(kind, list(range(kind.count))))
    bucket = builder.sub(load(builder, place, kind), numbers)
    store(builder, builder.or_(builder.shl(bucket, width), builder.and_(low, mask)), place)


@intrinsic
def _list_64(typing: Any, chunks: Any, entry: Any, word: Any, first: Any) -> Any:
    """chunks[entry + i] becomes `first` and the place of the i-th bit that is set in a word; 64 are written."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.VectorType(I8, 64)
        marks = builder.bitcast(values[2], ir.VectorType(ir.IntType(1), 64))
        places = ir.Constant(kind, list(range(64)))
        places = call(builder, "llvm.x86.avx512.mask.compress.v64i8", kind, places, ir.Constant(kind, None), marks)
        first = splat(builder, builder.trunc(values[3], I16), 32)
        for half in (0, 32):
            lanes = ir.Constant(ir.VectorType(I32, 32), list(range(half, half + 32)))
            part = builder.shuffle_vector(places, ir.Constant(kind, ir.Undefined), lanes)
            at = builder.add(values[1], ir.Constant(values[1].type, half))
            place = element(context, builder, signature.args[0], values[0], at)
            store(builder, builder.add(builder.zext(part, first.type), first), place)
        return context.get_dummy_value()

    return types.void(chunks, types.int64, types.uint64, types.int64), generate


@intrinsic
def _list_8(typing: Any, chunks: Any, entry: Any, byte: Any, first: Any, places: Any) -> Any:
    """`_list_64` for a byte: 8 are written."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        row = builder.mul(values[2], ir.Constant(I64, 8))
        row = load(builder, element(context, builder, signature.args[4], values[4], row), ir.VectorType(I8, 8))
        first = splat(builder, builder.trunc(values[3], I16), 8)
        place = element(context, builder, signature.args[0], values[0], values[1])
        store(builder, builder.add(builder.zext(row, first.type), first), place)
        return context.get_dummy_value()

    return types.void(chunks, types.int64, types.int64, types.int64, places), generate


@intrinsic
def _join_32(typing: Any, chunks: Any, entry: Any, data: Any, lows: Any, width: Any, orders: Any, shifts: Any) -> Any:
    """Make chunks[i], the place of its mark, the chunk, for 32 entries from a multiple of 32 on."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kinds, kind = signature.args, ir.VectorType(I8, 64)
        row = builder.mul(values[4], ir.Constant(I64, 64))
        order = load(builder, element(context, builder, kinds[5], values[5], row), kind)
        shift = load(builder, element(context, builder, kinds[6], values[6], row), kind)
        source = load(builder, element(context, builder, kinds[2], values[2], values[3]), kind)
        low = call(builder, "llvm.x86.avx512.permvar.qi.512", kind, source, order)
        low = call(builder, "llvm.x86.avx512.pmultishift.qb.512", kind, shift, low)
        place = element(context, builder, kinds[0], values[0], values[1])
        _join(builder, place, values[1], values[4], builder.bitcast(low, ir.VectorType(I16, 32)))
        return context.get_dummy_value()

    whole = types.int64
    return types.void(chunks, whole, data, whole, whole, orders, shifts), generate


@intrinsic
def _join_4(typing: Any, chunks: Any, entry: Any, word: Any, width: Any) -> Any:
    """`_join_32` for 4 entries, whose low bits are the first ones of a word."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        words = ir.VectorType(I64, 4)
        shifts = builder.mul(splat(builder, values[3], 4), ir.Constant(words, [0, 1, 2, 3]))
        low = builder.trunc(builder.lshr(splat(builder, values[2], 4), shifts), ir.VectorType(I16, 4))
        _join(builder, element(context, builder, signature.args[0], values[0], values[1]), values[1], values[3], low)
        return context.get_dummy_value()

    return types.void(chunks, types.int64, types.uint64, types.int64), generate


@inner
def read_lows(data: Bytes, at: int, entries: int, window_chunks: int, chunks: Halves) -> None:
    """Write the chunks of a block to chunks[:entries], and up to OVERWRITE numbers after them."""
    width, marks, counts = lows_shape(entries, window_chunks)
    lows = at + marks + counts
    entry = 0
    if SCREENS:
        for first in range(0, 8 * marks, 64):
            word = load_64(data, at + (first >> 3))
            # The last word may reach beyond the marks: what it lists stands behind the entries.
            _list_64(chunks, min(entry, entries), word, first)
            entry += count_bits(word)
        for first in range(0, entries, 32):
            _join_32(chunks, first, data, lows + (first * width >> 3), width, ORDERS, SHIFTS)
    else:
        for first in range(0, 8 * marks, 8):
            byte = load_8(data, at + (first >> 3))
            _list_8(chunks, entry, byte, first, PLACES)
            entry += count_bits(np.uint64(byte))
        for first in range(0, entries, 4):
            bit = first * width
            _join_4(chunks, first, load_64(data, lows + (bit >> 3)) >> np.uint64(bit & 7), width)


@inner(forceinline=True)
def find_low(data: Bytes | Pointer, at: int, entries: int, window_chunks: int, chunk: int) -> tuple[int, bool]:
    """Which entry a chunk of the window would be, but the last at most, and whether it is."""
    width, marks, counts = lows_shape(entries, window_chunks)
    bucket = chunk >> width
    sample = bucket >> SAMPLE_BITS
    bit = sample << SAMPLE_BITS
    if sample > 0:
        bit += load_16(data, at + marks + 2 * (sample - 1))
    # A mark that is not set ends a bucket: the wanted one begins behind so many of them.
    ends = bucket & ((1 << SAMPLE_BITS) - 1)
    while ends > 0:
        word = ~(load_64(data, at + (bit >> 3)) >> np.uint64(bit & 7)) & (~np.uint64(0) >> np.uint64(8))
        here = count_bits(word)
        if here >= ends:
            bit += nth_bit(word, ends) + 1
            break
        ends -= here
        bit += 56
    entry, wanted, low = bit - bucket, chunk & ((1 << width) - 1), -1
    while entry < entries and (load_8(data, at + (bit >> 3)) >> (bit & 7)) & 1:
        low = _low_part(data, at + marks + counts, entry, width)
        if low >= wanted:
            break
        entry, bit = entry + 1, bit + 1
    return min(entry, entries - 1), low == wanted


WINDOW_BITS = 16
WINDOW = 1 << WINDOW_BITS
BLOCKS = 1 << 31
SHORT, LOWS, BITS = 0, 1, 2
RANK = 512
# A window of which one chunk in FULL has a posting is stored as BITS even where that is larger: it is added faster.
FULL = 16
Array = TypeVar("Array", bound=np.ndarray)


@inner(forceinline=True)
def head_bytes(kind: int, entries: int, window_chunks: int) -> int:
    """Return the bytes of a block's data, or of a short list's, that stand before its codes."""
    if kind == LOWS:
        width, marks, counts = lows_shape(entries, window_chunks)
        return marks + counts + ((entries * width + 7) >> 3)
    if kind == BITS:
        return 8 * ((window_chunks + 63) // 64) + 2 * ((window_chunks + RANK - 1) // RANK)
    return 4 * entries


@inner(forceinline=True)
def code_bytes(entries: int, narrow: bool) -> int:
    """Return the bytes of so many codes, with the places of those that are not narrow."""
    return (entries + 1) >> 1 if narrow else entries + ((entries + 1) >> 1)


@inner(forceinline=True)
def block_bytes(kind: int, entries: int, window_chunks: int, narrow: bool) -> int:
    """Return the bytes of a block's data."""
    return head_bytes(kind, entries, window_chunks) + code_bytes(entries, narrow)


@inner(forceinline=True)
def code_at(data: Bytes | Pointer, codes: int, entry: int, narrow: bool) -> int:
    """Return the code of an entry, where a block's codes begin at byte `codes`."""
    if narrow:
        return (load_8(data, codes + (entry >> 1)) >> (4 * (entry & 1))) & 15
    return load_8(data, codes + entry)


@inner(forceinline=True)
def find_entry(
    data: Bytes | Pointer, kind: int, at: int, codes: int, entries: int, window_chunks: int, chunk: int, narrow: bool
) -> tuple[int, int]:
    """Where a chunk stands in a block or a short list: (its code or 0, which entry it is).

    `data` is the posting file's bytes or a `pointer` to them; `at` is the first byte of a block, or of a short list's
    chunks, and `codes` that of its codes; `chunk` counts from the window's first, in a short list from the shard's.
    Which entry it is matters only where postings have places.

    What is found decides no branch, which the processor would have to guess, but in LOWS: it works on several look-ups
    at once.
    """
    if kind == BITS:
        ranks = at + 8 * ((window_chunks + 63) // 64)
        entry = load_16(data, ranks + 2 * (chunk // RANK))
        entry += rank_in(data, at + chunk // RANK * (RANK // 8), chunk % RANK, narrow)
        there = (load_8(data, at + (chunk >> 3)) >> (chunk & 7)) & 1
        # Behind the last chunk of all there is nothing that could be read.
        return code_at(data, codes, min(entry, entries - 1), narrow) * there, entry
    if kind == LOWS:
        last, there = find_low(data, at, entries, window_chunks, chunk)
        return code_at(data, codes, last, narrow) * there, last
    low, left = 0, entries
    while left > 1:
        half = left >> 1
        low += half_or_none(half, load_32(data, at + 4 * (low + half)), chunk)
        left -= half
    there = load_32(data, at + 4 * low) == chunk
    return code_at(data, codes, low, narrow) * there, low


@inner
def exception(keys: Numbers | Pointer, values: Words | Pointer, count: int, key: int, otherwise: int) -> int:
    """Return the value of a key among so many keys, which ascend."""
    low, left = 0, count
    while left > 1:
        half = left >> 1
        low += half_or_none(half, keys[low + half], key)
        left -= half
    return int(values[low]) if left == 1 and keys[low] == key else otherwise


@inner(forceinline=True)
def store_of(files: Files, tables: Tables) -> Store:
    """The arrays of a shard as `posting_weight` takes them: pointers, the number of exceptions, and whether it is BM25.

    files: the posting file as (uint8, uint32) arrays. tables: (lengths, weights of value numbers, first value
    numbers of codes, exception keys, exception values); without lengths the index is a learned sparse one.
    """
    lengths, weights, code_values, keys, values = tables
    arrays = pointer(files[0]), pointer(lengths), pointer(weights), pointer(code_values), pointer(keys), pointer(values)
    return arrays, len(keys), len(lengths) > 0


@inner(forceinline=True)
def posting_weight(store: Store, bm25: Bm25Numbers, places: int, code: int, entry: int, term: int, chunk: int) -> float:
    """The exact weight behind a posting's code: float64.

    store: of `store_of`. `places` is where the block's places would begin; `chunk` counts from the shard's first.
    """
    (data, lengths, weights, code_values, keys, values), exceptions, by_length = store
    if not by_length:
        step = (load_8(data, places + (entry >> 1)) >> (4 * (entry & 1))) & 15
        if step == FAR:
            return float(weights[exception(keys, values, exceptions, (term << 32) | chunk, np.int64(0))])
        return float(weights[code_values[code] + step])
    built, asked = bm25
    norm = length_norm(lengths[chunk], built[0], built[1], built[2])
    frequency = smallest_frequency(code, norm)
    if code == NARROW_LAST:
        frequency = exception(keys, values, exceptions, (term << 32) | chunk, frequency)
    return frequency / (frequency + length_norm(lengths[chunk], asked[0], asked[1], asked[2]))


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
        self.files = (data, self.words)
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
