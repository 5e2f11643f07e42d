"""Products in bfloat16 by the processor's instruction for pairs of them (AVX512-BF16), summed up in float32.

The instruction multiplies 16 pairs of factors with 16 others and adds both products of each to 16 sums, twice the work
of one for float32. Weights are laid out once in the order in which it reads them, so that they are read from memory as
they lie there, and a product of any number of tokens is one pass over them.

Attention of prompts rounds the factors of both its products to bfloat16 too; sums, and the softmax between the
products, are float32. Keys and values of a sequence are rounded once for all tiles of query rows of a key head, and
keys that come after all tokens of a tile are skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ratchet.core.llvm import FEATURES, call, element, load, splat, store
from ratchet.core.numba_cache import njit
from ratchet.inference.local.cache import BLOCK
from ratchet.inference.local.vectors import CONTRACT, F32, FAST_MATH, I32, I64, Array, at_offset

MULTIPLIES_PAIRS = {"+avx512f", "+avx512bw", "+avx512bf16"} <= FEATURES
"""True if kernels may use the instruction."""
LANES = 16
OUTPUTS = 2 * LANES
"""Outputs that are computed together: with the rows of a tile, their sums stay in registers."""
FEWEST = 4
"""A product of fewer tokens takes as long as one of so many."""
FLOATS, PAIRS = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)


class _BFloat16(ir.types.Type):  # type: ignore[misc, unused-ignore]
    """LLVM's type, which llvmlite does not have."""

    def _to_string(self) -> str:
        return "bfloat"


HALVES = ir.VectorType(_BFloat16(), 2 * LANES)


def add_pairs(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """total + a0 * b0 + a1 * b1 in each lane, where a and b are pairs of bfloat16."""
    both = (builder.bitcast(one, HALVES) for one in (a, b))
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, total, *both)


def pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any, what: Any) -> Any:
    """Return the address of an array's element `at`, as one of `what`."""
    return builder.bitcast(element(context, builder, kind, array, at), what.as_pointer())


def multiply(
    builder: Any, left: Any, width: Any, right: Any, right_width: Any, steps: Any, rows: int, out: Any, out_width: Any
) -> None:
    """out[r * out_width + column] = the sum over i < steps of left[r * width + i] * right[i * right_width + column].

    Of `rows` rows r and the columns below OUTPUTS; left and right are pairs of bfloat16, out is float32.
    """
    totals = [[cgutils.alloca_once(builder, FLOATS) for _ in range(2)] for _ in range(rows)]
    for row in totals:
        for total in row:
            builder.store(ir.Constant(FLOATS, [0.0] * LANES), total)
    with cgutils.for_range(builder, steps) as loop:
        start = at_offset(builder, right, builder.mul(loop.index, right_width))
        columns = [load(builder, at_offset(builder, start, LANES * column), PAIRS) for column in range(2)]
        for number, row in enumerate(totals):
            place = at_offset(builder, left, builder.add(builder.mul(width, ir.Constant(I64, number)), loop.index))
            factor = splat(builder, builder.load(place), LANES)
            for total, column in zip(row, columns, strict=True):
                builder.store(add_pairs(builder, builder.load(total), factor, column), total)
    for number, row in enumerate(totals):
        begin = at_offset(builder, out, builder.mul(out_width, ir.Constant(I64, number)))
        for part, total in enumerate(row):
            store(builder, builder.load(total), at_offset(builder, begin, LANES * part))


@intrinsic(prefer_literal=True)
def _multiply_rows(typing: Any, x: Any, first: Any, weights: Any, block: Any, out: Any, rows: Any) -> Any:
    """The rows first .. first + rows - 1 of x times one block of weights, as `multiply_blocks` has them; rows is a
    constant."""
    count = rows.literal_value

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        shape = context.make_array(signature.args[0])(context, builder, values[0]).shape
        half = builder.lshr(builder.extract_value(shape, 1), ir.Constant(I64, 1))
        left = pointer(context, builder, signature.args[0], values[0], ir.Constant(I64, 0), I32)
        right = element(context, builder, signature.args[2], values[2], ir.Constant(I64, 0))
        result = context.make_array(signature.args[4])(context, builder, values[4])
        width, lanes = builder.extract_value(result.shape, 1), ir.Constant(I64, OUTPUTS)
        place = builder.add(builder.mul(values[1], width), builder.mul(values[3], lanes))
        multiply(
            builder,
            at_offset(builder, left, builder.mul(values[1], half)),
            half,
            at_offset(builder, right, builder.mul(builder.mul(values[3], half), lanes)),
            lanes,
            half,
            count,
            at_offset(builder, result.data, place),
            width,
        )
        return context.get_dummy_value()

    return types.void(x, types.int64, weights, types.int64, out, rows), generate


@njit(nogil=True, error_model="numpy", cache=True)
def multiply_blocks(x: Array, weights: Array, out: Array, first: int, last: int) -> None:  # pragma: no cover - compiled
    """out[:, OUTPUTS * b : OUTPUTS * (b + 1)] = x times block b of the weights, for first <= b < last.

    x uint16 [tokens, inputs]: bfloat16, of at least FEWEST tokens; weights of `in_blocks`; out float32 [tokens,
    OUTPUTS * blocks]. What a token gives does not depend on the others: those in two tiles are computed twice.
    """
    tokens = len(x)
    for block in range(first, last):
        if tokens >= 8:
            for token in range(0, tokens, 8):
                _multiply_rows(x, min(token, tokens - 8), weights, block, out, 8)
        else:
            for token in range(0, tokens, 4):
                _multiply_rows(x, min(token, tokens - 4), weights, block, out, 4)


def in_blocks(weight: torch.Tensor) -> Array:
    """Weights in bfloat16 [outputs, inputs] as `multiply_blocks` reads them: uint32 [blocks * inputs / 2 * OUTPUTS].

    A block has OUTPUTS outputs, the last zeros at its end; in it, pair after pair of inputs, the pairs of all outputs.
    """
    outputs, inputs = weight.shape
    blocks = -(-outputs // OUTPUTS)
    padded = torch.zeros((blocks * OUTPUTS, inputs), dtype=torch.bfloat16)
    padded[:outputs] = weight
    pairs: Array = padded.view(torch.int32).reshape(blocks, OUTPUTS, inputs // 2).transpose(1, 2).contiguous().numpy()
    return pairs.view(np.uint32).ravel()


# Attention of prompts: many query tokens of one sequence over its paged keys and values


ROWS = 12
"""Query rows of a tile."""
KEYS = OUTPUTS
"""Keys whose scores are computed together."""
MIN_TOKENS = 32
"""Tokens of a chunk from which on it is computed here. Text that a grammar forces mostly comes in shorter ones, and
then has the same attention as if it were decoded token by token."""


def suits(dtype: torch.dtype, dim: int) -> bool:
    """Return whether prompts of a model with weights in `dtype` and heads of size `dim` are computed here, on a CPU."""
    return MULTIPLIES_PAIRS and dtype == torch.bfloat16 and dim % KEYS == 0


@intrinsic(prefer_literal=True)
def key_scores(typing: Any, query: Any, keys: Any, at: Any, scores: Any, column: Any, dim: Any) -> Any:
    """scores[r, column : column + KEYS] = query[r] @ keys, r < ROWS.

    query uint16 [ROWS, dim]: bfloat16; keys, from `at` on, uint32 [dim / 2, KEYS]: pairs of it; scores float32. dim is
    a constant.
    """
    size = dim.literal_value

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        q = pointer(context, builder, signature.args[0], values[0], ir.Constant(I64, 0), I32)
        k = element(context, builder, signature.args[1], values[1], values[2])
        array = context.make_array(signature.args[3])(context, builder, values[3])
        width = builder.extract_value(array.shape, 1)
        half, place = ir.Constant(I64, size // 2), at_offset(builder, array.data, values[4])
        multiply(builder, q, half, k, ir.Constant(I64, KEYS), half, ROWS, place, width)
        return context.get_dummy_value()

    return types.void(query, keys, types.int64, scores, types.int64, dim), generate


@intrinsic
def value_mix(typing: Any, weights: Any, values: Any, at: Any, pairs: Any, width: Any, mixed: Any, column: Any) -> Any:
    """mixed[r, column : column + 2 * LANES] = weights[r, : 2 * pairs] @ values, r < ROWS.

    weights uint16 [ROWS, any]: bfloat16; values, from `at` on, uint32 [pairs, width]: pairs of it, of which the first
    2 * LANES of each row are read; mixed float32 [ROWS, any].
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        w = pointer(context, builder, signature.args[0], arguments[0], ir.Constant(I64, 0), I32)
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        half = builder.lshr(builder.extract_value(array.shape, 1), ir.Constant(I64, 1))
        v = element(context, builder, signature.args[1], arguments[1], arguments[2])
        out = context.make_array(signature.args[5])(context, builder, arguments[5])
        width, place = builder.extract_value(out.shape, 1), at_offset(builder, out.data, arguments[6])
        multiply(builder, w, half, v, arguments[4], arguments[3], ROWS, place, width)
        return context.get_dummy_value()

    whole = types.int64
    return types.void(weights, values, whole, whole, whole, mixed, whole), generate


def _round(builder: Any, low: Any, high: Any) -> Any:
    return call(builder, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", HALVES, high, low)


@intrinsic
def round_pairs(typing: Any, source: Any, low: Any, high: Any, target: Any, to: Any) -> Any:
    """target[to + i] = the bfloat16 of source[low + i], and in the upper half that of source[high + i], i < LANES.

    source float32, target uint32, both flat.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kinds = signature.args
        parts = [load(builder, element(context, builder, kinds[0], values[0], at), FLOATS) for at in values[1:3]]
        both = builder.bitcast(_round(builder, *parts), ir.VectorType(ir.IntType(16), KEYS))
        order = ir.Constant(ir.VectorType(I32, KEYS), [at for lane in range(LANES) for at in (lane, LANES + lane)])
        store(
            builder,
            builder.shuffle_vector(both, ir.Constant(both.type, ir.Undefined), order),
            element(context, builder, kinds[3], values[3], values[4]),
        )
        return context.get_dummy_value()

    return types.void(source, types.int64, types.int64, target, types.int64), generate


@intrinsic
def scale_row(typing: Any, source: Any, at: Any, factor: Any, target: Any, to: Any) -> Any:
    """target[to + i] = factor * source[at + i], i < KEYS: float32, in a target of uint16 rounded to bfloat16."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        start = element(context, builder, signature.args[0], values[0], values[1])
        place = element(context, builder, signature.args[3], values[3], values[4])
        share = splat(builder, values[2], LANES)
        parts = [
            builder.fmul(load(builder, at_offset(builder, start, LANES * part), FLOATS), share) for part in range(2)
        ]
        if target.dtype == types.float32:
            for part, numbers in enumerate(parts):
                store(builder, numbers, at_offset(builder, place, LANES * part))
        else:
            store(builder, builder.bitcast(_round(builder, *parts), PAIRS), place)
        return context.get_dummy_value()

    return types.void(source, types.int64, types.float32, target, types.int64), generate


def _power_of_two(builder: Any, x: Any) -> Any:
    """2**x for vectors of x <= 0, to 5e-5 of its value, which is far less than rounding it to bfloat16 adds."""

    def constant(number: float) -> Any:
        return ir.Constant(FLOATS, [float(np.float32(number))] * LANES)

    lowest = constant(-127.0)  # where the exponent's bits are zero, and so is the result
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    n = call(builder, "llvm.nearbyint.v16f32", FLOATS, x)
    f = builder.fsub(x, n)
    total = constant(np.log(2) ** 4 / 24)
    for factor in (np.log(2) ** 3 / 6, np.log(2) ** 2 / 2, np.log(2), 1.0):
        total = builder.fadd(builder.fmul(total, f, CONTRACT), constant(factor), CONTRACT)
    whole = builder.add(builder.fptosi(n, PAIRS), ir.Constant(PAIRS, [127] * LANES))
    return builder.fmul(total, builder.bitcast(builder.shl(whole, ir.Constant(PAIRS, [23] * LANES)), FLOATS))


@intrinsic
def softmax_row(typing: Any, scores: Any, at: Any, count: Any, scale: Any, weights: Any, to: Any) -> Any:
    """weights = 2**(scale * (scores - their maximum)) in bfloat16, of `count` numbers; returns the sum of the weights.

    scores float32 from `at` on, weights uint16 from `to` on; count is a multiple of KEYS. The sum is that of the
    rounded weights, so that these divided by it add up to one.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        start = element(context, builder, signature.args[0], values[0], values[1])
        to = element(context, builder, signature.args[4], values[4], values[5])
        steps = builder.lshr(values[2], ir.Constant(I64, 5))
        zero, bottom = (ir.Constant(FLOATS, [number] * LANES) for number in (0.0, float("-inf")))
        tops, total = [cgutils.alloca_once(builder, FLOATS) for _ in range(2)], cgutils.alloca_once(builder, FLOATS)
        for top in tops:
            builder.store(bottom, top)
        builder.store(zero, total)

        def both(index: Any) -> list[Any]:
            place = at_offset(builder, start, builder.mul(index, ir.Constant(I64, KEYS)))
            return [load(builder, at_offset(builder, place, part * LANES), FLOATS) for part in range(2)]

        with cgutils.for_range(builder, steps) as loop:
            for top, part in zip(tops, both(loop.index), strict=True):
                known = builder.load(top)
                builder.store(builder.select(builder.fcmp_ordered(">", part, known), part, known), top)
        one, other = (builder.load(top) for top in tops)
        highest = builder.select(builder.fcmp_ordered(">", one, other), one, other)
        most = call(builder, "llvm.vector.reduce.fmax.v16f32", F32, highest)
        scale = splat(builder, values[3], LANES)
        less = splat(builder, builder.fneg(builder.fmul(most, values[3])), LANES)
        ones = ir.Constant(PAIRS, [0x3F803F80] * LANES)
        with cgutils.for_range(builder, steps) as loop:
            powers = []
            for part in both(loop.index):
                x = builder.fadd(builder.fmul(part, scale, CONTRACT), less, CONTRACT)
                powers.append(_power_of_two(builder, x))
            rounded = builder.bitcast(_round(builder, *powers), PAIRS)
            builder.store(add_pairs(builder, builder.load(total), rounded, ones), total)
            store(builder, rounded, at_offset(builder, to, builder.mul(loop.index, ir.Constant(I64, KEYS))))
        kind = ir.FunctionType(F32, [F32, FLOATS])
        add = cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.fadd.v16f32")
        return builder.call(add, [ir.Constant(F32, 0.0), builder.load(total)], fastmath=("reassoc",))

    whole = types.int64
    return types.float32(scores, whole, whole, types.float32, weights, whole), generate


@functools.cache
def prompt_kernel(group: int, dim: int) -> Callable[..., None]:
    """Compile attention of tiles of prompts for one model's shape; group: query heads per key head; dim: head size.

    The kernel takes query, out [tokens, heads, dim]; keys, values and kv_heads as `attention_kernel`; tables as in
    `Packed`; tiles int64 [tiles, 5]: the first token of the chunk, its number of tokens, the chunk, the tokens before
    the chunk, and the tile's first row, where row r is query head r % group of a key head and token r // group;
    scale; and the range of tiles to do. It releases the GIL.
    """
    block, rows_of_tile, together, lanes = BLOCK, ROWS, KEYS, LANES
    one = np.float32(1.0)

    @njit(nogil=True, fastmath=FAST_MATH, error_model="numpy", cache=True)  # type: ignore[untyped-decorator, unused-ignore]
    def attend(
        query: Array,
        keys: Array,
        values: Array,
        kv_heads: int,
        tables: Array,
        tiles: Array,
        scale: float,
        out: Array,
        first: int,
        last: int,
    ) -> None:  # pragma: no cover - compiled
        heads = query.shape[1]
        width = (tables.shape[1] * block + together - 1) // together * together
        rounded_keys = np.empty(width // 2 * dim, np.uint32)
        rounded_values = np.empty(width // 2 * dim, np.uint32)
        scores = np.empty((rows_of_tile, width), np.float32)
        weights = np.empty((rows_of_tile, width), np.uint16)
        q = np.zeros((rows_of_tile, dim), np.uint16)
        mixed = np.empty((rows_of_tile, dim), np.float32)
        totals = np.empty(rows_of_tile, np.float32)
        power = np.float32(scale * 1.4426950408889634)
        for h in range(kv_heads):
            known, ready, written = -1, 0, 0
            for i in range(first, last):
                token, count, chunk, past, row = tiles[i, 0], tiles[i, 1], tiles[i, 2], tiles[i, 3], tiles[i, 4]
                rows = min(rows_of_tile, count * group - row)
                end = past + (row + rows - 1) // group + 1
                if chunk != known:
                    known, ready, after = chunk, 0, i
                    while after < last and tiles[after, 2] == chunk:
                        after += 1
                    # Other threads may still be writing the keys and values of what comes after these tiles.
                    written = past + (min(tiles[after - 1, 4] + rows_of_tile, count * group) - 1) // group + 1
                while ready * block < end:
                    at = (np.int64(tables[chunk, ready]) * kv_heads + h) * (dim * block)
                    start = ready * block
                    to = start // together * (dim // 2 * together) + start % together
                    for d in range(dim // 2):
                        low = at + 2 * d * block
                        round_pairs(keys, low, low + block, rounded_keys, to + d * together)
                    used = written - start  # what stands in the page after these was written by others, or never
                    for j in range(block // 2):
                        to, low = (start // 2 + j) * dim, at + 2 * j * dim
                        for d in range(0, dim, lanes):
                            round_pairs(values, low + d, low + dim + d, rounded_values, to + d)
                        if used < 2 * j + 2:
                            mask = np.uint32(0xFFFF if used == 2 * j + 1 else 0)
                            for d in range(dim):
                                rounded_values[to + d] &= mask
                    ready += 1
                for r in range(rows):
                    at = ((token + (row + r) // group) * heads + h * group + (row + r) % group) * dim
                    for d in range(0, dim, together):
                        scale_row(query, at + d, one, q, r * dim + d)
                blocks = (end + together - 1) // together
                for j in range(blocks):
                    key_scores(q, rounded_keys, j * (dim // 2 * together), scores, j * together, dim)
                for r in range(rows):
                    n = past + (row + r) // group + 1
                    scores[r, n : blocks * together] = -np.inf
                    totals[r] = softmax_row(scores, r * width, blocks * together, power, weights, r * width)
                for d in range(0, dim, together):
                    value_mix(weights, rounded_values, d, (end + 1) // 2, dim, mixed, d)
                for r in range(rows):
                    at = ((token + (row + r) // group) * heads + h * group + (row + r) % group) * dim
                    for d in range(0, dim, together):
                        scale_row(mixed, r * dim + d, one / totals[r], out, at + d)

    return attend  # type: ignore[no-any-return, unused-ignore]
