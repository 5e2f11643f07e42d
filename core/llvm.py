"""Pieces of LLVM code that the intrinsics of several kernels are written with."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, codegen

I32 = ir.IntType(32)
_ASKED = numba.config.CPU_FEATURES
FEATURES = frozenset((codegen.get_host_cpu_features() if _ASKED is None else _ASKED).split(","))
"""The instructions that kernels are compiled for, in LLVM's names ("+avx2"): the processor's, or NUMBA_CPU_FEATURES."""


def splat(builder: Any, value: Any, count: int) -> Any:
    """Return a vector of `count` times the same value."""
    kind = ir.VectorType(value.type, count)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    places = ir.Constant(ir.VectorType(I32, count), [0] * count)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), places)


def load(builder: Any, place: Any, kind: Any) -> Any:
    """Load a number or vector from an address that need not be aligned."""
    value = builder.load(builder.bitcast(place, kind.as_pointer()))
    value.align = 1
    return value


def store(builder: Any, value: Any, place: Any) -> None:
    """Write a number or vector to an address that need not be aligned."""
    builder.store(value, builder.bitcast(place, value.type.as_pointer())).align = 1


def element(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """Return the address of an array's element `at`; `kind` is the array's type in Numba."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])


def call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Call the function of LLVM with this name."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def prefetch(builder: Any, place: Any) -> None:
    """Ask for a line of memory that will be read soon."""
    call(builder, "llvm.prefetch.p0", ir.VoidType(), place, *(ir.Constant(I32, flag) for flag in (0, 3, 1)))
