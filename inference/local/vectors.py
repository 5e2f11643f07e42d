"""Vector code for the kernels of the in-process engine: what Numba does not write by itself.

Each function here is an intrinsic: it writes LLVM's instructions for vectors of a fixed length, which every processor
has, as one wide register or as several narrow ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ratchet.core.llvm import FEATURES, element, load, splat, store

Array = np.ndarray[Any, Any]
FAST_MATH = {"reassoc", "contract", "arcp", "nsz", "afn"}
"""LLVM's fast-math flags without the two that assume that no number is NaN or infinite."""

F32, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
CONTRACT = ("contract",)
LANES = 16
"""Floats of a vector: one register of AVX-512, two of AVX2, four of NEON."""
WIDE = "+avx512f" in FEATURES
SUMS = 24 if WIDE else 6
"""Vectors that are kept as running sums at once: with what is added to them they fill the processor's registers."""


@intrinsic
def as_float(typing: Any, weight: Any) -> Any:
    """A float32 from itself, or from the 16 bits of a bfloat16, which are its upper half."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if signature.args[0] == types.float32:
            return values[0]
        bits = builder.shl(builder.zext(values[0], I32), ir.Constant(I32, 16))
        return builder.bitcast(bits, F32)

    return types.float32(weight), generate


def _bfloat16_bits(builder: Any, number: Any) -> Any:
    """The bfloat16 that is nearest to a float32, the even one of two; of NaN, a NaN."""
    bits = builder.bitcast(number, I32)
    last = builder.and_(builder.lshr(bits, ir.Constant(I32, 16)), ir.Constant(I32, 1))
    rounded = builder.add(bits, builder.add(last, ir.Constant(I32, 0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", number, number)
    rounded = builder.select(is_nan, ir.Constant(I32, 0x7FC00000), rounded)
    return builder.trunc(builder.lshr(rounded, ir.Constant(I32, 16)), ir.IntType(16))


@intrinsic
def in_format_of(typing: Any, array: Any, number: Any) -> Any:
    """A float32 as an array's element: as it is, or as the bits of bfloat16 in an array of uint16."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return values[1] if array.dtype == types.float32 else _bfloat16_bits(builder, values[1])

    return array.dtype(array, types.float32), generate


@intrinsic
def exp(typing: Any, x: Any) -> Any:
    """e**x in float32, to 2e-7 of its value for -87 <= x <= 88, and of the nearest of these for other x.

    x = n ln 2 + f, e**f by its Taylor series, 2**n by the exponent's bits: loops over it become vector code, which they
    do not with the C library's function.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        def constant(number: float) -> Any:
            return ir.Constant(F32, float(np.float32(number)))

        def times_plus(a: Any, b: Any, c: Any) -> Any:
            return builder.fadd(builder.fmul(a, b, CONTRACT), c, CONTRACT)

        x = values[0]
        for limit, comparison in ((-87.0, "<"), (88.0, ">")):
            outside = builder.fcmp_ordered(comparison, x, constant(limit))
            x = builder.select(outside, constant(limit), x)
        floor = builder.module.declare_intrinsic("llvm.floor", [F32])
        n = builder.call(floor, [times_plus(x, constant(1.4426950408889634), constant(0.5))])
        f = times_plus(n, constant(-0.693359375), x)  # ln 2 in two parts, of which the first is exact
        f = times_plus(n, constant(2.12194440e-4), f)
        total = constant(1 / 720)
        for factor in (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
            total = times_plus(total, f, constant(factor))
        power = builder.shl(builder.add(builder.fptosi(n, I32), ir.Constant(I32, 127)), ir.Constant(I32, 23))
        return builder.fmul(total, builder.bitcast(power, F32))

    return types.float32(types.float32), generate


def at_offset(builder: Any, place: Any, offset: Any) -> Any:
    """Return the address `offset` elements behind `place`."""
    return builder.gep(place, [offset if isinstance(offset, ir.Value) else ir.Constant(I64, offset)])


def _add_product(builder: Any, total: Any, a: Any, b: Any) -> None:
    product = builder.fmul(a, b, CONTRACT)
    builder.store(builder.fadd(builder.load(total), product, CONTRACT), total)


@intrinsic(prefer_literal=True)
def page_scores(
    typing: Any, query: Any, keys: Any, at: Any, scores: Any, column: Any, rows: Any, dim: Any, block: Any
) -> Any:
    """scores[r, column : column + block] = query[r] @ a page's keys, for r < rows.

    query [>= rows, dim] and scores are float32 and contiguous; the page is `keys`, flat, from `at` on: [dim, block].
    rows, dim and block are constants.
    """
    count, size, lanes = rows.literal_value, dim.literal_value, block.literal_value

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        q = element(context, builder, signature.args[0], values[0], ir.Constant(I64, 0))
        page = element(context, builder, signature.args[1], values[1], values[2])
        array = context.make_array(signature.args[3])(context, builder, values[3])
        width = builder.extract_value(array.shape, 1)
        kind = ir.VectorType(F32, lanes)
        totals = [cgutils.alloca_once(builder, kind) for _ in range(count)]
        for total in totals:
            builder.store(ir.Constant(kind, [0.0] * lanes), total)
        with cgutils.for_range(builder, ir.Constant(I64, size)) as loop:
            key = load(builder, at_offset(builder, page, builder.mul(loop.index, ir.Constant(I64, lanes))), kind)
            for row, total in enumerate(totals):
                place = at_offset(builder, q, builder.add(loop.index, ir.Constant(I64, row * size)))
                _add_product(builder, total, splat(builder, builder.load(place), lanes), key)
        for row, total in enumerate(totals):
            offset = builder.add(builder.mul(width, ir.Constant(I64, row)), values[4])
            store(builder, builder.load(total), at_offset(builder, array.data, offset))
        return context.get_dummy_value()

    whole = types.int64
    return types.void(query, keys, whole, scores, whole, rows, dim, block), generate


@intrinsic(prefer_literal=True)
def page_mix(
    typing: Any, weights: Any, column: Any, values: Any, at: Any, used: Any, mixed: Any, rows: Any, dim: Any
) -> Any:
    """mixed[r] += weights[r, column : column + used] @ the first `used` values of a page, for r < rows.

    weights and mixed [>= rows, dim] are float32 and contiguous; the page is `values`, flat, from `at` on: [block, dim].
    rows and dim are constants. What stands behind the used values of a page is not read.
    """
    count, size = rows.literal_value, dim.literal_value
    lanes = next(lanes for lanes in (LANES, 8, 4, 2, 1) if size % lanes == 0)
    parts, kind = size // lanes, ir.VectorType(F32, lanes)
    together = max(1, min(count, SUMS // parts))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        width = builder.extract_value(array.shape, 1)
        page = element(context, builder, signature.args[2], arguments[2], arguments[3])
        out = element(context, builder, signature.args[5], arguments[5], ir.Constant(I64, 0))
        for first in range(0, count, together):
            group = range(first, min(first + together, count))
            totals = {(row, part): cgutils.alloca_once(builder, kind) for row in group for part in range(parts)}
            for (row, part), total in totals.items():
                builder.store(load(builder, at_offset(builder, out, row * size + part * lanes), kind), total)
            with cgutils.for_range(builder, arguments[4]) as loop:
                start = at_offset(builder, page, builder.mul(loop.index, ir.Constant(I64, size)))
                parts_of = [load(builder, at_offset(builder, start, part * lanes), kind) for part in range(parts)]
                for row in group:
                    offset = builder.add(builder.mul(width, ir.Constant(I64, row)), arguments[1])
                    place = at_offset(builder, array.data, builder.add(offset, loop.index))
                    weight = splat(builder, builder.load(place), lanes)
                    for part in range(parts):
                        _add_product(builder, totals[row, part], weight, parts_of[part])
            for (row, part), total in totals.items():
                store(builder, builder.load(total), at_offset(builder, out, row * size + part * lanes))
        return context.get_dummy_value()

    whole = types.int64
    return types.void(weights, whole, values, whole, whole, mixed, rows, dim), generate
