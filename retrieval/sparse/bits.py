"""Adding a block of kind BITS to the bounds of a window: 64 chunks a step, with the vector instructions of the machine.

A block's codes stand one after another, and a bit of a mask says which chunk has one. Codes are a byte, or narrow, of 4
bits, of which every 64 chunks begin with a new byte. Three ways spread the codes out to their chunks, all with the same
result to the last bit; the machine's features choose when the kernels are compiled:

    AVX-512 with VBMI2   one instruction spreads 64 codes
    AVX2                 a shuffle by a table spreads 8
    others               one posting after another

On an AMD EPYC with AVX-512 the first adds 17 chunks in the time of one posting of another kind of block. With VBMI it
also has coarse bounds, of one byte (lists.py), of which it adds about 30.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ratchet.core.llvm import FEATURES, call, element, load, prefetch, splat, store
from ratchet.core.numba_cache import inner
from ratchet.retrieval.arrays import Bytes, Halves, Numbers, Places
from ratchet.retrieval.sparse.reading import count_bits, load_64

# Chunks whose bounds stay in a core's first-level cache while all blocks of a window are added to them.
STRIP = 1 << 13
# Bytes that are read past a block's last code at most: posting files end with so many more.
OVERREAD = 64

EXPANDS = {"+avx512bw", "+avx512vbmi2"} <= FEATURES
SCREENS = EXPANDS and "+avx512vbmi" in FEATURES
SHUFFLES = "+avx2" in FEATURES
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
    places = ir.Constant(_vector(I32, count), list(range(first, first + count)))
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), places)


def _opaque(builder: Any, vector: Any) -> Any:
    """Keep the compiler from joining a load and the expansion after it: AMD's Zen 4 takes twice the time for one."""
    return builder.asm(ir.FunctionType(vector.type, [vector.type]), "", "=v,0", [vector], False)


def _add(builder: Any, place: Any, codes: Any, weight: Any, name: str, mask: Any) -> None:
    """Add code * code * weight >> 16, and 1 where there is a code, to the bounds at `place`: uint16 vectors."""
    count = codes.type.count
    codes = builder.zext(codes, _vector(I16, count))
    bounds = load(builder, place, codes.type)
    product = call(builder, name, codes.type, builder.mul(codes, codes), splat(builder, weight, count))
    more = builder.add(bounds, product)
    ones = ir.Constant(codes.type, [1] * count)
    if mask is None:
        mask = builder.icmp_unsigned("!=", codes, ir.Constant(codes.type, [0] * count))
    more = builder.select(mask, builder.add(more, ones), more)
    store(builder, more, place)


def _codes_of_64(builder: Any, source: Any, narrow: bool) -> Any:
    """The 64 codes from an address on, as bytes; narrow ones with other bits above their own 4."""
    if not narrow:
        return _opaque(builder, load(builder, source, _vector(I8, 64)))
    pairs = _vector(I16, 32)
    loaded = builder.zext(load(builder, source, _vector(I8, 32)), pairs)
    loaded = builder.or_(loaded, builder.shl(loaded, ir.Constant(pairs, [4] * 32)))
    return builder.bitcast(loaded, _vector(I8, 64))


@intrinsic
def _unpack(typing: Any, unpacked: Any, at: Any, data: Any, codes: Any) -> Any:
    """Write 64 narrow codes, from data[codes] on, as bytes to unpacked[at : at + 64]."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        source = element(context, builder, signature.args[2], values[2], values[3])
        narrow = builder.and_(_codes_of_64(builder, source, True), ir.Constant(_vector(I8, 64), [15] * 64))
        store(builder, narrow, element(context, builder, signature.args[0], values[0], values[1]))
        return context.get_dummy_value()

    return types.void(unpacked, types.int64, data, types.int64), generate


def _spread_16(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """The codes of 16 chunks as bytes, 0 where a chunk has none. kinds, values: of low, high, data, codes, later, table
    as `_add_16` has them."""
    low, high, _, codes, later, _ = values
    spread = []
    for bits, source in ((low, codes), (high, later)):
        eight, sixteen = _vector(I8, 8), _vector(I8, 16)
        wide = ir.Constant(_vector(I32, 16), list(range(16)))
        loaded = load(builder, element(context, builder, kinds[2], values[2], source), eight)
        row = builder.mul(bits, ir.Constant(I64, 8))
        order = load(builder, element(context, builder, kinds[5], values[5], row), eight)
        pair = [builder.shuffle_vector(v, ir.Constant(eight, None), wide) for v in (loaded, order)]
        spread.append(_lanes(builder, call(builder, "llvm.x86.ssse3.pshuf.b.128", sixteen, *pair), 0, 8))
    return builder.shuffle_vector(*spread, ir.Constant(_vector(I32, 16), list(range(16))))


def _adder_of_64(narrow: bool) -> Any:
    """Make the intrinsic that adds the codes of 64 chunks, from data[codes] on, to bounds[at : at + 64].

    Bit i of `mask`: chunk i has one. `factor` is the weight; a narrow code c adds factor[c], and factor[0] is 0.
    """

    @intrinsic
    def add(typing: Any, bounds: Any, at: Any, mask: Any, data: Any, codes: Any, factor: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            kinds, kind, sums = signature.args, _vector(I8, 64), _vector(I16, 32)
            place = element(context, builder, kinds[0], values[0], values[1])
            source = element(context, builder, kinds[3], values[3], values[4])
            mask = builder.bitcast(values[2], _vector(ir.IntType(1), 64))
            loaded = _codes_of_64(builder, source, narrow)
            if narrow:
                loaded = builder.and_(loaded, ir.Constant(kind, [15] * 64))
                table = element(context, builder, kinds[5], values[5], ir.Constant(I64, 0))
                table = load(builder, table, _vector(I16, 16))
                twice = ir.Constant(_vector(I32, 32), [*range(16), *range(16)])
                table = builder.shuffle_vector(table, ir.Constant(table.type, ir.Undefined), twice)
            spread = call(builder, "llvm.x86.avx512.mask.expand.v64i8", kind, loaded, ir.Constant(kind, None), mask)
            for first in (0, 32):
                here, lanes = builder.gep(place, [ir.Constant(I64, first)]), _lanes(builder, spread, first, 32)
                if narrow:
                    lanes = builder.zext(lanes, sums)
                    more = call(builder, "llvm.x86.avx512.permvar.hi.512", sums, table, lanes)
                    store(builder, builder.add(load(builder, here, sums), more), here)
                else:
                    chosen = _lanes(builder, mask, first, 32)
                    _add(builder, here, lanes, values[5], "llvm.x86.avx512.pmulhu.w.512", chosen)
            return context.get_dummy_value()

        kind = factor if narrow else types.uint16
        return types.void(bounds, types.int64, types.uint64, data, types.int64, kind), generate

    return add


_add_64, _add_64_narrow = _adder_of_64(False), _adder_of_64(True)


def _adder_of_16(narrow: bool) -> Any:
    """Make the intrinsic that adds the codes of 16 chunks to bounds[at : at + 16].

    8 go by the bits `low` from data[codes], 8 by `high` from data[later]. Narrow codes are unpacked; `factor` is as in
    `_adder_of_64`.
    """

    @intrinsic
    def add(
        typing: Any,
        bounds: Any,
        at: Any,
        low: Any,
        high: Any,
        data: Any,
        codes: Any,
        later: Any,
        table: Any,
        factor: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            both = _spread_16(context, builder, signature.args[2:8], values[2:8])
            place = element(context, builder, signature.args[0], values[0], values[1])
            if not narrow:
                _add(builder, place, both, values[8], "llvm.x86.avx2.pmulhu.w", None)
                return context.get_dummy_value()
            bytes_16, halves = _vector(I8, 16), _vector(I16, 16)
            table = load(builder, element(context, builder, signature.args[8], values[8], ir.Constant(I64, 0)), halves)
            eight = ir.Constant(halves, [8] * 16)
            # A shuffle looks bytes up: the lower and the upper one of each step.
            lower, upper = (
                builder.zext(call(builder, "llvm.x86.ssse3.pshuf.b.128", bytes_16, part, both), halves)
                for part in (builder.trunc(table, bytes_16), builder.trunc(builder.lshr(table, eight), bytes_16))
            )
            more = builder.or_(lower, builder.shl(upper, eight))
            store(builder, builder.add(load(builder, place, halves), more), place)
            return context.get_dummy_value()

        whole, kind = types.int64, factor if narrow else types.uint16
        return types.void(bounds, whole, whole, whole, data, whole, whole, table, kind), generate

    return add


_add_16, _add_16_narrow = _adder_of_16(False), _adder_of_16(True)


def _screen(groups: int, narrow: bool) -> Any:
    """Make the intrinsic that adds all lists' BITS blocks to the coarse bounds of 64 * `groups` chunks."""

    @intrinsic
    def add(
        typing: Any, bounds: Any, at: Any, data: Any, masks: Any, codes: Any, lists: Any, tables: Any, full: Any
    ) -> Any:
        """Add to bounds[at : at + 64 * groups], and set these to 0; returns 0 where none of them was SATURATED.

        masks[i] is the byte of `data` at which list i's masks begin, codes[i] that of its next codes, which moves on;
        tables[i, c >> 2] is the bound of its code c, of a narrow one tables[i, c + 16 j] for all j. full: uint64
        [groups], bit i of full[j]: chunk 64 j + i was.
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
                    prefetch(builder, builder.gep(source, [builder.add(ahead, ir.Constant(I64, AHEAD))]))
                for group in range(groups):
                    mask = load(builder, builder.gep(source, [builder.add(mask_at, ir.Constant(I64, 8 * group))]), I64)
                    classes = _codes_of_64(builder, builder.gep(source, [code_at]), narrow)
                    if not narrow:
                        classes = builder.lshr(builder.bitcast(classes, halves), ir.Constant(halves, [2] * 32))
                        classes = builder.bitcast(classes, kind)
                    compact = call(builder, "llvm.x86.avx512.permvar.qi.512", kind, table, classes)
                    lanes = builder.bitcast(mask, bits)
                    spread = call(builder, "llvm.x86.avx512.mask.expand.v64i8", kind, compact, zero, lanes)
                    more = call(builder, "llvm.uadd.sat.v64i8", kind, builder.load(sums[group]), spread)
                    builder.store(more, sums[group])
                    code_bytes = builder.ctpop(mask)
                    if narrow:
                        code_bytes = builder.lshr(builder.add(code_bytes, ir.Constant(I64, 1)), ir.Constant(I64, 1))
                    code_at = builder.add(code_at, code_bytes)
                builder.store(code_at, moving)
            most = ir.Constant(kind, [SATURATED] * 64)
            any_full: Any = ir.Constant(I64, 0)
            for group, (one, target) in enumerate(zip(sums, places, strict=True)):
                reached = builder.bitcast(builder.icmp_unsigned("==", builder.load(one), most), I64)
                builder.store(reached, element(context, builder, kinds[7], values[7], ir.Constant(I64, group)))
                any_full = builder.or_(any_full, reached)
                store(builder, zero, target)
            return any_full

        whole = types.int64
        return types.uint64(bounds, whole, data, masks, codes, whole, tables, full), generate

    return add


_screen_64, _screen_256 = _screen(1, False), _screen(4, False)
_screen_64_narrow, _screen_256_narrow = _screen(1, True), _screen(4, True)


@intrinsic
def increase(typing: Any, bounds: Any, at: Any, more: Any) -> Any:
    """bounds[at] += more; where it is a byte, up to SATURATED at most."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = element(context, builder, signature.args[0], values[0], values[1])
        before = builder.load(place)
        if before.type == I8:
            builder.store(call(builder, "llvm.uadd.sat.i8", I8, before, values[2]), place)
        else:
            builder.store(builder.add(before, values[2]), place)
        return context.get_dummy_value()

    return types.void(bounds, types.int64, bounds.dtype), generate


@inner
def add_bits(
    bounds: Halves,
    data: Bytes,
    masks: int,
    codes: int,
    first: int,
    end: int,
    weight: int,
    steps: Halves,
    unpacked: Bytes,
    narrow: bool,
) -> int:
    """Add the codes of a block's chunks first .. end - 1 to the bounds; returns where the codes of the next ones begin.

    `masks` and `codes` are the bytes of `data` at which the block's masks, and the codes of these chunks, begin.
    `first` is a multiple of 64, and whole groups of 64 are written. steps[c] is the bound of code c.
    unpacked: room for a byte for each of these chunks, and 64 more.
    """
    groups = range(first >> 6, (end + 63) >> 6)
    entry = codes
    if narrow and SHUFFLES and not EXPANDS:
        size = np.int64(0)
        for group in groups:
            size += (count_bits(load_64(data, masks + 8 * group)) + 1) >> 1
        for at in range(0, size, 32):
            _unpack(unpacked, 2 * at, data, codes + at)
        entry = 0
    for group in groups:
        mask = load_64(data, masks + 8 * group)
        if EXPANDS:
            if narrow:
                _add_64_narrow(bounds, 64 * group, mask, data, codes, steps)
            else:
                _add_64(bounds, 64 * group, mask, data, codes, np.uint16(weight))
        elif SHUFFLES:
            for at in range(64 * group, 64 * group + 64, 16):
                bits = mask >> np.uint64(at & 63)
                low, high = np.int64(bits & np.uint64(0xFF)), np.int64((bits >> np.uint64(8)) & np.uint64(0xFF))
                later = entry + count_bits(np.uint64(low))
                if narrow:
                    _add_16_narrow(bounds, at, low, high, unpacked, entry, later, SPREAD, steps)
                else:
                    _add_16(bounds, at, low, high, data, entry, later, SPREAD, np.uint16(weight))
                entry = later + count_bits(np.uint64(high))
            entry += entry & narrow
        else:
            left, at = mask, codes << narrow
            while left:
                lowest = left & (np.uint64(0) - left)
                code = np.int64(data[at >> narrow])
                if narrow:
                    code = (code >> (4 * (at & 1))) & 15
                bounds[64 * group + count_bits(lowest - np.uint64(1))] += steps[code]
                at += 1
                left ^= lowest
        codes += (count_bits(mask) + narrow) >> narrow
    return codes


@inner
def screen_bits(
    bounds: Bytes,
    data: Bytes,
    masks: Numbers,
    codes: Numbers,
    lists: int,
    tables: Bytes,
    size: int,
    candidates: Places,
    narrow: bool,
) -> int:
    """Add all lists' BITS blocks to a window's coarse bounds and set these to 0; returns how many are SATURATED.

    candidates: the chunks of those, ascending. The other arguments are those of `_screen`. Only where SCREENS.
    """
    count = at = 0
    full = np.empty(4, np.uint64)
    if SCREENS:
        while at < size:
            step = 256 if at + 256 <= size else 64
            if narrow and step == 256:
                reached = _screen_256_narrow(bounds, at, data, masks, codes, lists, tables, full)
            elif narrow:
                reached = _screen_64_narrow(bounds, at, data, masks, codes, lists, tables, full)
            elif step == 256:
                reached = _screen_256(bounds, at, data, masks, codes, lists, tables, full)
            else:
                reached = _screen_64(bounds, at, data, masks, codes, lists, tables, full)
            if reached:
                for first in range(0, step, 64):
                    word = full[first >> 6]
                    while word:
                        candidates[count] = at + first + count_bits((word & (np.uint64(0) - word)) - np.uint64(1))
                        count += 1
                        word &= word - np.uint64(1)
            at += step
    return count
