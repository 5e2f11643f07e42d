"""Blocks of kind LOWS, which postings.py describes: their shape, all of their chunks, and one chunk's entry.

All chunks are read with vector instructions. Where the processor has AVX-512 with VBMI and VBMI2, one instruction lists
the marks of 64 bits, and two take the low bits of 32 entries apart, of whatever width. Elsewhere a table lists the
marks of 8 bits, and shifts take the low bits of 4 entries apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ratchet.core.llvm import call, element, load, splat, store
from ratchet.core.numba_cache import inner
from ratchet.retrieval.arrays import Bytes, Halves, Pointer
from ratchet.retrieval.sparse.bits import SCREENS
from ratchet.retrieval.sparse.reading import count_bits, load_8, load_16, load_32, load_64, nth_bit, top_bit

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
    """The low bits of an entry."""
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
    """Of 32 entries from a multiple of 32 on: chunks[i], the place of its mark, becomes the chunk."""

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
