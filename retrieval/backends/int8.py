"""The kernel of dense search on the CPU: int8 codes of vectors times int8 codes of queries, and whatever may be best.

Codes lie in blocks of 64 rows, as `retrieval.backends.codes` writes them: 64 scales and 64 errors in float32, then a
group of 256 bytes for every four dimensions, four bytes of each row. So an instruction multiplies four dimensions of
many rows with those of a query, and the sum of each row grows in a lane of its own:

    AVX-512 with VNNI   one instruction multiplies and adds 64 codes
    others              what LLVM makes of products of int16: with AVX2 an instruction for 16, and one to add them

Both give the same whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from ratchet.core.llvm import FEATURES, load, splat, store
from ratchet.core.numba_cache import inner, njit
from ratchet.retrieval.arrays import Bytes, Floats, Numbers, Places

BLOCK_ROWS = 64
HEAD = 8 * BLOCK_ROWS
"""Bytes of a block before its codes."""
GROUP = 4 * BLOCK_ROWS
"""Bytes of four dimensions of a block."""
TILE = 4
"""Queries whose sums with a block are in registers together; a query alone is the other case."""
LANES = 16
PARTS = BLOCK_ROWS // LANES

VNNI = {"+avx512bw", "+avx512vnni"} <= FEATURES
QUERY_DTYPE = np.dtype(np.int8 if VNNI else np.int16)
# Without VNNI the products of two neighbours are added by one instruction, and their sums grow in twice the lanes.
SUM_LANES = LANES if VNNI else 2 * LANES
I8, I16, I32, I64, F32 = *(ir.IntType(bits) for bits in (8, 16, 32, 64)), ir.FloatType()
SUMS, CODES, FLOATS = ir.VectorType(I32, SUM_LANES), ir.VectorType(I8, 4 * LANES), ir.VectorType(F32, LANES)


def _at(builder: Any, start: Any, at: Any, kind: Any) -> Any:
    """A value or vector from the element `at` after `start`."""
    return load(builder, builder.gep(start, [at]), kind)


def _shuffle(builder: Any, value: Any, places: list[int]) -> Any:
    order = ir.Constant(ir.VectorType(I32, len(places)), places)
    return builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), order)


def _pair_sums(builder: Any, value: Any) -> Any:
    """Of a vector's elements 0 and 1, 2 and 3, ..."""
    return builder.add(*(_shuffle(builder, value, list(range(side, value.type.count, 2))) for side in (0, 1)))


def _add_products(builder: Any, sums: Any, codes: Any, query: Any, at: Any) -> Any:
    """Add to the sums of 16 rows their products with the query's four codes from the element `at` on."""
    if VNNI:
        values = [sums, builder.bitcast(codes, sums.type), splat(builder, _at(builder, query, at, I32), LANES)]
        kind = ir.FunctionType(sums.type, [sums.type] * 3)
        called = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
        return builder.call(called, values)
    four = _shuffle(builder, _at(builder, query, at, ir.VectorType(I16, 4)), [0, 1, 2, 3] * LANES)
    wide = ir.VectorType(I32, 4 * LANES)
    return builder.add(sums, _pair_sums(builder, builder.mul(builder.zext(codes, wide), builder.sext(four, wide))))


def _make_tile(queries: int) -> Callable[..., Any]:
    @intrinsic
    def tile(
        typing: Any, codes: Any, block: Any, groups: Any, query_codes: Any, first: Any, biases: Any, factors: Any,
        min_bound: Any, scores: Any, masks: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            def start(place: int, at: Any) -> Any:
                kind = signature.args[place]
                return builder.gep(context.make_array(kind)(context, builder, values[place]).data, [at])

            zero, groups, first = I64(0), values[2], values[4]
            block = start(0, values[1])
            query_codes = start(3, builder.mul(first, builder.mul(groups, I64(4))))
            sums = [
                [cgutils.alloca_once_value(builder, ir.Constant(SUMS, None)) for _ in range(PARTS)]
                for _ in range(queries)
            ]
            with cgutils.for_range(builder, groups) as loop:
                at = builder.add(builder.mul(loop.index, I64(GROUP)), I64(HEAD))
                parts = [_at(builder, block, builder.add(at, I64(4 * LANES * p)), CODES) for p in range(PARTS)]
                for q in range(queries):
                    place = builder.add(builder.mul(loop.index, I64(4 * queries)), I64(4 * q))
                    for p in range(PARTS):
                        added = _add_products(builder, builder.load(sums[q][p]), parts[p], query_codes, place)
                        builder.store(added, sums[q][p])
            any_mask = I64(0)
            for q in range(queries):
                query = builder.add(first, I64(q))
                bias = splat(builder, _at(builder, start(5, query), zero, I32), LANES)
                row = start(6, builder.mul(query, I64(3)))
                scale, length, rest = (splat(builder, _at(builder, row, I64(i), F32), LANES) for i in range(3))
                limit = splat(builder, _at(builder, start(7, query), zero, F32), LANES)
                for p in range(PARTS):
                    total = builder.load(sums[q][p])
                    total = builder.sub(total if VNNI else _pair_sums(builder, total), bias)
                    scales = _at(builder, block, I64(4 * LANES * p), FLOATS)
                    errors = _at(builder, block, I64(4 * (BLOCK_ROWS + LANES * p)), FLOATS)
                    score = builder.fmul(builder.fmul(builder.sitofp(total, FLOATS), scales), scale)
                    error = builder.fadd(builder.fmul(errors, length), rest)
                    mask = builder.bitcast(builder.fcmp_ordered(">=", builder.fadd(score, error), limit), I16)
                    store(builder, score, start(8, I64(q * BLOCK_ROWS + LANES * p)))
                    store(builder, mask, start(9, I64(PARTS * q + p)))
                    any_mask = builder.or_(any_mask, builder.zext(mask, I64))
            return any_mask

        whole = types.int64
        return types.int64(codes, whole, whole, query_codes, whole, biases, factors, min_bound, scores, masks), generate

    return tile


_tile_1, _tile_many = _make_tile(1), _make_tile(TILE)


@intrinsic
def _lowest_bit(typing: Any, word: Any) -> Any:
    """The number of the lowest bit of a uint64 that is set; there is one."""
    return types.int64(types.uint64), lambda context, builder, signature, values: builder.cttz(
        values[0], ir.Constant(ir.IntType(1), 1)
    )


@njit(nogil=True, cache=True)
def scan(
    codes: Bytes, floats: Floats, groups: int, first: int, row: int, end: int,
    query_codes: NDArray[np.int8] | NDArray[np.int16], biases: Places, factors: Floats, min_bound: Floats,
    lower: Floats, chunks: Numbers, upper: Floats, counts: Numbers,
) -> tuple[int, int]:  # fmt: skip
    """Offer rows row .. end - 1 to every query; returns (the row it came to, a query whose candidates are too many).

    `codes` are a shard's, which begins at chunk `first`, and `floats` the same bytes; `row` is a multiple of 64.
    `query_codes` are as `codes.QueryCodes` has them, with biases and factors. For each query: `min_bound`, below which
    bounds are out, `lower`, a heap of the k best lower bounds, and its candidates with their upper bounds and count.
    """
    capacity = chunks.shape[1]
    scores = np.empty(TILE * BLOCK_ROWS, np.float32)
    masks = np.empty(TILE, np.uint64)
    parts = masks.view(np.uint16)
    words = HEAD // 4 + groups * BLOCK_ROWS
    queries = len(counts)
    while row < end:
        for q in range(queries):
            if counts[q] + BLOCK_ROWS > capacity:
                prune(chunks[q], upper[q], counts, q, min_bound[q])
                if counts[q] > capacity // 2:
                    return row, q
        block = row // BLOCK_ROWS
        there = end - row
        for tile in range(0, queries, TILE):
            if queries == 1:
                any_mask = _tile_1(
                    codes, 4 * words * block, groups, query_codes, 0, biases, factors, min_bound, scores, parts
                )
            else:
                any_mask = _tile_many(
                    codes, 4 * words * block, groups, query_codes, tile, biases, factors, min_bound, scores, parts
                )
            if any_mask == 0:
                continue
            for q in range(tile, min(tile + TILE, queries)):
                mask = masks[q - tile]
                while mask:
                    lane = _lowest_bit(mask)
                    mask &= mask - np.uint64(1)
                    score = scores[(q - tile) * BLOCK_ROWS + lane]
                    error = floats[words * block + BLOCK_ROWS + lane] * factors[q, 1] + factors[q, 2]
                    if lane < there and score + error >= min_bound[q]:
                        chunks[q, counts[q]] = first + row + lane
                        upper[q, counts[q]] = score + error
                        counts[q] += 1
                        if score - error > lower[q, 0]:
                            _replace_least(lower[q], score - error)
                            min_bound[q] = max(min_bound[q], lower[q, 0])
        row += BLOCK_ROWS
    return row, -1


@njit(nogil=True, cache=True)
def prune(chunks: Numbers, upper: Floats, counts: Numbers, query: int, min_bound: float) -> None:
    """Drop the candidates of a query that are out by now."""
    kept = 0
    for i in range(counts[query]):
        if upper[i] >= min_bound:
            chunks[kept], upper[kept] = chunks[i], upper[i]
            kept += 1
    counts[query] = kept


@inner
def _replace_least(heap: Floats, value: float) -> None:
    """Put a value in the place of the least, which is the first of a heap."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= len(heap):
            break
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value
