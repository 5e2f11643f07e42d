"""Products in bfloat16 by the processor's instruction for pairs of them (AVX512-BF16), summed up in float32.

The instruction multiplies 16 pairs of factors with 16 others and adds both products of each to 16 sums, twice the work
of one for float32. Weights are laid out once in the order in which it reads them, so that they are read from memory as
they lie there, and a product of any number of tokens is one pass over them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ratchet.core.llvm import FEATURES, call, element, load, splat, store
from ratchet.core.numba_cache import njit
from ratchet.inference.local.vectors import F32, I32, I64, Array, at_offset

MULTIPLIES_PAIRS = {"+avx512f", "+avx512bw", "+avx512bf16"} <= FEATURES
"""Whether kernels may use the instruction."""
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
    """The address of an array's element `at`, as one of `what`."""
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
