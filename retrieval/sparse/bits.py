"""Adding a block of kind BITS to the bounds of a window: 64 chunks a step, with the vector instructions of the machine.

A block's codes stand one after another, and a bit of a mask says which chunk has one. Three ways spread the codes out
to their chunks, all with the same result to the last bit; the machine's features choose when the kernels are compiled:

    AVX-512 with VBMI2   one instruction spreads 64 codes
    AVX2                 a shuffle by a table spreads 8
    others               one posting after another

On an AMD EPYC with AVX-512 the first adds 17 chunks in the time of one posting of another kind of block. With VBMI it
also has coarse bounds, of one byte (screening.py), of which it adds about 30.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, codegen, types
from numba.core.types.misc import CPointer
from numba.extending import intrinsic

from ratchet.llvm import element, load, splat
from ratchet.numba_cache import inner
from retrieval.arrays import Bytes, Halves, Numbers, Places, Pointer

# Chunks whose bounds stay in a core's first-level cache while all blocks of a window are added to them.
STRIP = 1 << 13
# Bytes that are read past a block's last code at most: posting files end with so many more.
OVERREAD = 64

_FEATURES = numba.config.CPU_FEATURES
_FEATURES = (codegen.get_host_cpu_features() if _FEATURES is None else _FEATURES).split(",")
EXPANDS = {"+avx512bw", "+avx512vbmi2"} <= set(_FEATURES)
SCREENS = EXPANDS and "+avx512vbmi" in _FEATURES
SHUFFLES = "+avx2" in _FEATURES
# A chunk's coarse bound is a whole number up to this; the tables of coarse bounds tell so many classes of codes apart.
SATURATED = 255
CLASSES = 64
# All lists are read at once, more places than the processor reads ahead at by itself: bytes to ask for ahead of each.
AHEAD = 512


def _spread_table() -> np.ndarray:
    """uint8 [256, 8]: which code each of the 8 bits of a byte takes; 128, which a shuffle turns into 0: none."""
    bits = (np.arange(256)[:, None] >> np.arange(8)) & 1
    return np.where(bits, np.cumsum(bits, axis=1) - 1, 128).astype(np.uint8)


SPREAD = _spread_table()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def _vector(element: ir.Type, count: int) -> Any:
    return ir.VectorType(element, count)


def _lanes(builder: Any, value: Any, first: int, count: int) -> Any:
    """`count` elements of a vector from the element `first` on."""
    places = ir.Constant(_vector(I32, count), list(range(first, first + count)))
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), places)


def _call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def _opaque(builder: Any, vector: Any) -> Any:
    """Keep the compiler from joining a load and the expansion after it: AMD's Zen 4 takes twice the time for one."""
    return builder.asm(ir.FunctionType(vector.type, [vector.type]), "", "=v,0", [vector], False)


def _fetch(builder: Any, place: Any) -> None:
    """Ask for a line of memory that will be read soon."""
    _call(builder, "llvm.prefetch.p0", ir.VoidType(), place, *(ir.Constant(I32, flag) for flag in (0, 3, 1)))


def _add(builder: Any, place: Any, codes: Any, weight: Any, name: str, mask: Any) -> None:
    """Add code * code * weight >> 16, and 1 where there is a code, to the bounds at `place`: uint16 vectors."""
    count = codes.type.count
    codes = builder.zext(codes, _vector(I16, count))
    bounds = load(builder, place, codes.type)
    product = _call(builder, name, codes.type, builder.mul(codes, codes), splat(builder, weight, count))
    more = builder.add(bounds, product)
    ones = ir.Constant(codes.type, [1] * count)
    if mask is None:
        mask = builder.icmp_unsigned("!=", codes, ir.Constant(codes.type, [0] * count))
    more = builder.select(mask, builder.add(more, ones), more)
    store = builder.store(more, builder.bitcast(place, more.type.as_pointer()))
    store.align = 2


@intrinsic
def _add_64(typing: Any, bounds: Any, at: Any, mask: Any, data: Any, codes: Any, weight: Any) -> Any:
    """Add the codes of 64 chunks, from data[codes] on, to bounds[at : at + 64]; bit i of `mask`: chunk i has one."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = element(context, builder, signature.args[0], values[0], values[1])
        source = element(context, builder, signature.args[3], values[3], values[4])
        kind, halves = _vector(I8, 64), [ir.Constant(I64, 32 * half) for half in range(2)]
        loaded = load(builder, source, kind)
        loaded = _opaque(builder, loaded)
        mask = builder.bitcast(values[2], _vector(ir.IntType(1), 64))
        spread = _call(builder, "llvm.x86.avx512.mask.expand.v64i8", kind, loaded, ir.Constant(kind, None), mask)
        for half in range(2):
            _add(
                builder,
                builder.gep(place, [halves[half]]),
                _lanes(builder, spread, 32 * half, 32),
                values[5],
                "llvm.x86.avx512.pmulhu.w.512",
                _lanes(builder, mask, 32 * half, 32),
            )
        return context.get_dummy_value()

    return types.void(bounds, types.int64, types.uint64, data, types.int64, types.uint16), generate


@intrinsic
def _add_16(
    typing: Any, bounds: Any, at: Any, low: Any, high: Any, data: Any, codes: Any, later: Any, weight: Any, table: Any
) -> Any:
    """Add the codes of 16 chunks to bounds[at : at + 16]: 8 by the bits `low` from data[codes], 8 from data[later]."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        spread = []
        for bits, source in ((values[2], values[5]), (values[3], values[6])):
            eight, sixteen = _vector(I8, 8), _vector(I8, 16)
            wide = ir.Constant(_vector(I32, 16), list(range(16)))
            loaded = load(builder, element(context, builder, signature.args[4], values[4], source), eight)
            row = builder.mul(bits, ir.Constant(I64, 8))
            order = load(builder, element(context, builder, signature.args[8], values[8], row), eight)
            pair = [builder.shuffle_vector(v, ir.Constant(eight, None), wide) for v in (loaded, order)]
            spread.append(_lanes(builder, _call(builder, "llvm.x86.ssse3.pshuf.b.128", sixteen, *pair), 0, 8))
        both = builder.shuffle_vector(*spread, ir.Constant(_vector(I32, 16), list(range(16))))
        place = element(context, builder, signature.args[0], values[0], values[1])
        _add(builder, place, both, values[7], "llvm.x86.avx2.pmulhu.w", None)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(bounds, whole, whole, whole, data, whole, whole, types.uint16, table), generate


def _screen(groups: int) -> Any:
    """Make the intrinsic that adds all lists' BITS blocks to the coarse bounds of 64 * `groups` chunks."""

    @intrinsic
    def add(
        typing: Any, bounds: Any, at: Any, data: Any, masks: Any, codes: Any, lists: Any, tables: Any, full: Any
    ) -> Any:
        """Add to bounds[at : at + 64 * groups], and set these to 0; returns 0 where none of them was SATURATED.

        masks[i] is the byte of `data` at which list i's masks begin, codes[i] that of its next codes, which moves on;
        tables[i, c >> 2] is the bound of its code c. full: uint64 [groups], bit i of full[j]: chunk 64 j + i was.
        """

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            kinds = signature.args
            kind, zero = _vector(I8, 64), ir.Constant(_vector(I8, 64), None)
            bits, halves = _vector(ir.IntType(1), 64), _vector(I16, 32)
            place = element(context, builder, kinds[0], values[0], values[1])
            places = [builder.gep(place, [ir.Constant(I64, 64 * group)]) for group in range(groups)]
            sums = [cgutils.alloca_once_value(builder, load(builder, one, kind)) for one in places]
            source = element(context, builder, kinds[2], values[2], ir.Constant(I64, 0))
            with cgutils.for_range(builder, values[5]) as loop:
                table = element(
                    context, builder, kinds[6], values[6], builder.mul(loop.index, ir.Constant(I64, CLASSES))
                )
                table = load(builder, table, kind)
                mask_at = builder.load(element(context, builder, kinds[3], values[3], loop.index))
                mask_at = builder.add(mask_at, builder.lshr(values[1], ir.Constant(I64, 3)))
                moving = element(context, builder, kinds[4], values[4], loop.index)
                code_at = builder.load(moving)
                for ahead in (mask_at, code_at):
                    _fetch(builder, builder.gep(source, [builder.add(ahead, ir.Constant(I64, AHEAD))]))
                for group in range(groups):
                    mask = load(builder, builder.gep(source, [builder.add(mask_at, ir.Constant(I64, 8 * group))]), I64)
                    loaded = _opaque(builder, load(builder, builder.gep(source, [code_at]), kind))
                    classes = builder.lshr(builder.bitcast(loaded, halves), ir.Constant(halves, [2] * 32))
                    classes = builder.bitcast(classes, kind)
                    compact = _call(builder, "llvm.x86.avx512.permvar.qi.512", kind, table, classes)
                    lanes = builder.bitcast(mask, bits)
                    spread = _call(builder, "llvm.x86.avx512.mask.expand.v64i8", kind, compact, zero, lanes)
                    more = _call(builder, "llvm.uadd.sat.v64i8", kind, builder.load(sums[group]), spread)
                    builder.store(more, sums[group])
                    code_at = builder.add(code_at, builder.ctpop(mask))
                builder.store(code_at, moving)
            most = ir.Constant(kind, [SATURATED] * 64)
            any_full: Any = ir.Constant(I64, 0)
            for group, (one, target) in enumerate(zip(sums, places, strict=True)):
                reached = builder.bitcast(builder.icmp_unsigned("==", builder.load(one), most), I64)
                builder.store(reached, element(context, builder, kinds[7], values[7], ir.Constant(I64, group)))
                any_full = builder.or_(any_full, reached)
                store = builder.store(zero, builder.bitcast(target, kind.as_pointer()))
                store.align = 1
            return any_full

        whole = types.int64
        return types.uint64(bounds, whole, data, masks, codes, whole, tables, full), generate

    return add


_screen_64, _screen_256 = _screen(1), _screen(4)


@intrinsic
def increase(typing: Any, bounds: Any, at: Any, more: Any) -> Any:
    """bounds[at] += more; where it is a byte, up to SATURATED at most."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = element(context, builder, signature.args[0], values[0], values[1])
        before = builder.load(place)
        if before.type == I8:
            builder.store(_call(builder, "llvm.uadd.sat.i8", I8, before, values[2]), place)
        else:
            builder.store(builder.add(before, values[2]), place)
        return context.get_dummy_value()

    return types.void(bounds, types.int64, bounds.dtype), generate


@intrinsic
def pointer(typing: Any, array: Any) -> Any:
    """Where an array's elements are, which must outlive what is done with this. It takes an index, as an array does.

    Numba counts the references to an array where it is unpacked or passed on, by atomic instructions that each take as
    long as adding several postings; to this it does not.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, values[0]).data

    return CPointer(array.dtype)(array), generate


def _place(context: Any, builder: Any, kind: Any, data: Any, at: Any) -> Any:
    """The address of data[at]; `data` is an array or a `pointer`."""
    return builder.gep(data, [at]) if isinstance(kind, CPointer) else element(context, builder, kind, data, at)


def _loader(bits: int) -> Any:
    """Make the intrinsic that reads a number of so many bits."""

    @intrinsic
    def read(typing: Any, data: Any, at: Any) -> Any:
        """The number from the byte data[at] on, the lowest byte first: a uint64 where it fills one, else an int64.

        Unlike data[at], it does not ask whether `at` counts from the end.
        """

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            place = _place(context, builder, signature.args[0], *values)
            return builder.zext(load(builder, place, ir.IntType(bits)), I64)

        return (types.uint64 if bits == 64 else types.int64)(data, types.int64), generate

    return read


load_8, load_16, load_32, load_64 = (_loader(bits) for bits in (8, 16, 32, 64))


@intrinsic
def fetch(typing: Any, data: Any, at: Any) -> Any:
    """Ask for the line of memory that holds data[at], which will be read soon."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _fetch(builder, _place(context, builder, signature.args[0], *values))
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


@intrinsic
def count_bits(typing: Any, word: Any) -> Any:
    """How many bits of a uint64 are set."""
    return types.int64(types.uint64), lambda context, builder, signature, values: builder.ctpop(values[0])


@inner
def add_bits(bounds: Halves, data: Bytes, masks: int, codes: int, first: int, end: int, weight: int) -> int:
    """Add the codes of a block's chunks first .. end - 1 to the bounds; returns where the codes of the next ones begin.

    `masks` and `codes` are the bytes of `data` at which the block's masks, and the codes of these chunks, begin.
    `first` is a multiple of 64, and whole groups of 64 are written.
    """
    for group in range(first >> 6, (end + 63) >> 6):
        mask = load_64(data, masks + 8 * group)
        if EXPANDS:
            _add_64(bounds, 64 * group, mask, data, codes, np.uint16(weight))
            codes += count_bits(mask)
        elif SHUFFLES:
            for part in range(4):
                bits = mask >> np.uint64(16 * part)
                low, high = np.int64(bits & np.uint64(0xFF)), np.int64((bits >> np.uint64(8)) & np.uint64(0xFF))
                later = codes + count_bits(np.uint64(low))
                _add_16(bounds, 64 * group + 16 * part, low, high, data, codes, later, np.uint16(weight), SPREAD)
                codes = later + count_bits(np.uint64(high))
        else:
            while mask:
                lowest = mask & (np.uint64(0) - mask)
                code = np.int64(data[codes])
                bounds[64 * group + count_bits(lowest - np.uint64(1))] += (code * code * weight >> 16) + 1
                codes += 1
                mask ^= lowest
    return codes


@inner
def screen_bits(
    bounds: Bytes, data: Bytes, masks: Numbers, codes: Numbers, lists: int, tables: Bytes, size: int, candidates: Places
) -> int:
    """Add all lists' BITS blocks to a window's coarse bounds and set these to 0; returns how many are SATURATED.

    candidates: the chunks of those, ascending. The other arguments are those of `_screen`. Only where SCREENS.
    """
    count = at = 0
    full = np.empty(4, np.uint64)
    if SCREENS:
        while at < size:
            if at + 256 <= size:
                step, reached = 256, _screen_256(bounds, at, data, masks, codes, lists, tables, full)
            else:
                step, reached = 64, _screen_64(bounds, at, data, masks, codes, lists, tables, full)
            if reached:
                for first in range(0, step, 64):
                    word = full[first >> 6]
                    while word:
                        candidates[count] = at + first + count_bits((word & (np.uint64(0) - word)) - np.uint64(1))
                        count += 1
                        word &= word - np.uint64(1)
            at += step
    return count


@intrinsic
def half_or_none(typing: Any, half: Any, value: Any, wanted: Any) -> Any:
    """`half` where value <= wanted, else 0: a step of a binary search.

    The compiler makes a branch of anything plainer here, and the processor guesses every other one wrong.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        mask = builder.sext(builder.icmp_signed("<=", values[1], values[2]), I64)
        mask = builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [mask], False)
        return builder.and_(values[0], mask)

    return types.int64(types.int64, types.int64, types.int64), generate


# Four numbers of 16 bits in a word: a 1 in each, the low byte of each, and the highest bit of each.
FOUR, LOW, HIGH = np.uint64(0x0001000100010001), np.uint64(0x00FF00FF00FF00FF), np.uint64(0x8000800080008000)


@inner(forceinline=True)
def sum_of_8(data: Bytes | Pointer, at: int) -> np.int64:
    """The sum of the 8 bytes from data[at] on."""
    word = load_64(data, at)
    pairs = (word & LOW) + ((word >> np.uint64(8)) & LOW)
    return np.int64((pairs * FOUR) >> np.uint64(48))


@inner(forceinline=True)
def sums_before(data: Bytes | Pointer, at: int, wanted: int) -> tuple[int, bool]:
    """Of the sums of the first 1 to 8 bytes from data[at] on: (how many are below `wanted`, which is one of them)."""
    word = load_64(data, at)
    odd = (word >> np.uint64(8)) & LOW
    even_sums = ((word & LOW) + odd) * FOUR  # of the first 2, 4, 6 and 8
    odd_sums = even_sums - odd  # of the first 1, 3, 5 and 7
    # Sums are below 2^15: what is added or taken away here does not reach the number beside it.
    every = np.uint64(min(max(wanted, 0), 0x7FFF)) * FOUR
    reached = count_bits(((even_sums | HIGH) - every) & HIGH) + count_bits(((odd_sums | HIGH) - every) & HIGH)
    others = (even_sums ^ every) + (HIGH - FOUR), (odd_sums ^ every) + (HIGH - FOUR)
    return 8 - reached, count_bits(others[0] & HIGH) + count_bits(others[1] & HIGH) < 8


@inner(forceinline=True)
def rank_in(data: Bytes | Pointer, masks: int, place: int) -> int:
    """How many of the first `place` bits from data[masks] on are set: at most 511."""
    rank = 0
    for word in range(8):
        bits = place - 64 * word
        below = (np.uint64(1) << np.uint64(bits & 63)) - np.uint64(1)
        kept = below if bits < 64 else ~np.uint64(0)
        rank += count_bits(load_64(data, masks + 8 * word) & (kept if bits > 0 else np.uint64(0)))
    return rank
