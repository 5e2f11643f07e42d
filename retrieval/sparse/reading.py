"""Reading a posting file byte by byte from the kernels: numbers at any address, and searches without branches."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.types.misc import CPointer
from numba.extending import intrinsic

from ratchet.core.llvm import element, load, prefetch
from ratchet.core.numba_cache import inner
from ratchet.retrieval.arrays import Bytes, Pointer

I64 = ir.IntType(64)


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
    return builder.gep(data, [at]) if isinstance(kind, CPointer) else element(context, builder, kind, data, at)


def _loader(bits: int) -> Any:
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
        prefetch(builder, _place(context, builder, signature.args[0], *values))
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


@intrinsic
def count_bits(typing: Any, word: Any) -> Any:
    """Count the bits of a uint64 that are set."""
    return types.int64(types.uint64), lambda context, builder, signature, values: builder.ctpop(values[0])


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


@intrinsic
def top_bit(typing: Any, number: Any) -> Any:
    """The place of the highest bit of an int64 above 0."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.sub(ir.Constant(I64, 63), builder.ctlz(values[0], ir.Constant(ir.IntType(1), 0)))

    return types.int64(types.int64), generate


@inner(forceinline=True)
def nth_bit(word: np.uint64, n: int) -> np.int64:
    """Where the n-th bit of a word is that is set, n from 1 on; there must be so many."""
    at = np.uint64(0)
    for width in (np.uint64(32), np.uint64(16), np.uint64(8), np.uint64(4), np.uint64(2), np.uint64(1)):
        count = count_bits((word >> at) & ((np.uint64(1) << width) - np.uint64(1)))
        beyond = count < n
        n -= count * beyond
        at += width * np.uint64(beyond)
    return np.int64(at)


@inner(forceinline=True)
def rank_in(data: Bytes | Pointer, masks: int, place: int, narrow: bool) -> int:
    """Count the entries of a BITS block before bit `place` of the 512 bits from data[masks] on.

    As many as bits are set; of narrow codes, every 64 whose number is odd have one entry more.
    """
    rank = 0
    for word in range(8):
        bits = place - 64 * word
        below = (np.uint64(1) << np.uint64(bits & 63)) - np.uint64(1)
        kept = below if bits < 64 else ~np.uint64(0)
        count = count_bits(load_64(data, masks + 8 * word) & (kept if bits > 0 else np.uint64(0)))
        rank += count + (count & (narrow & (bits >= 64)))
    return rank
