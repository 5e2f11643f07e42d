"""A code per posting that bounds its weight from above, and the way back from it to the exact weight.

A code c of 1 .. 255 says that a weight is at most top * (c / 255)^2. The square gives small weights, which most are,
the finer steps. What a code loses comes back in one of two ways:

- BM25: codes are narrow, of 4 bits: n in 1 .. 15 stands for the code NARROW_FIRST + NARROW_STEP * n, and top is 1. A
  weight is tf / (tf + norm) with the chunk's norm known. Where two frequencies would share a code, the larger takes the
  next one, so that a code and a norm give the frequency. The last code alone stands for several: the smallest of them
  is meant, unless the posting stands in the shard's list of exceptions.
- learned sparse: a code is a byte, c = ceil(255 * sqrt(w / top)). Weights are a fixed function of a bfloat16, whose
  bits are consecutive small integers, the value numbers. The posting keeps 4 bits more: its place among the numbers of
  its code, or FAR for the list of exceptions.

Only additions, products, quotients and square roots, which IEEE 754 rounds in one way: the code that a search computes
is the code that the build computed, whatever the machine.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from ratchet.core.numba_cache import inner
from ratchet.retrieval.arrays import Bytes, Floats, Halves, Numbers, Words

STEPS = 255
FAR = 15
NARROW_FIRST, NARROW_STEP, NARROW_LAST = 150, 7, 15
LARGEST_FREQUENCY = (1 << 32) - 1


C = TypeVar("C", int, Numbers)


def wide_code(narrow: C) -> C:
    """Return the code, or the codes, that narrow ones above 0 stand for."""
    return NARROW_FIRST + NARROW_STEP * narrow


def _ratios() -> np.ndarray:
    """float64 [15]: the largest tf / norm whose weight a narrow code bounds; the last code, 15, bounds all."""
    bounds = (wide_code(np.arange(NARROW_LAST)) / STEPS) ** 2
    ratios: np.ndarray = bounds / (1 - bounds)
    return ratios


RATIOS = _ratios()


@inner(inline="always")
def length_norm(length: int, k1: float, b: float, mean_length: float) -> float:
    """Return a chunk's term in BM25's denominator: k1 * (1 - b + b * length / mean length)."""
    return k1 * (1.0 - b + b * (length / mean_length))


@inner
def frequency_code(frequency: int, norm: float) -> int:
    """The narrow code of a BM25 posting."""
    return _walk(frequency, np.int64(NARROW_LAST), norm)[1]


@inner
def smallest_frequency(code: int, norm: float) -> int:
    """The smallest term frequency that has at least this narrow code beside this norm."""
    return _walk(np.int64(LARGEST_FREQUENCY), code, norm)[0]


@inner(forceinline=True)
def _walk(largest: int, end: int, norm: float) -> tuple[int, int]:
    """From frequency 1 on to `largest`, or to the first whose code is at least `end`: that frequency and its code."""
    frequency, code = 1, 1
    while True:
        while code < NARROW_LAST and frequency > norm * RATIOS[code]:
            code += 1
        if frequency >= largest or code >= end:
            return frequency, code
        frequency, code = frequency + 1, code + 1


@inner
def fill_steps(share: int, levels: Numbers, steps: Halves) -> None:
    """steps[c] becomes the bound of a code c above 0: share * levels[c] / 2^16, rounded up, but 0 for a share of 0."""
    for code in range(1, len(steps)):
        steps[code] = (share * levels[code] >> 16) + 1 if share > 0 else 0


def code_levels(narrow: bool, ratio: float = 1.0) -> Numbers:
    """int64: for every code the weight that it bounds, in units of 1 / STEPS^2 of `top`; that of 0 is not used.

    `ratio`, of narrow codes: what a search adds to a frequency in BM25's denominator is at least so many times what the
    codes were made with. tf / (tf + norm) <= w then gives tf / (tf + ratio norm) <= w / (w + ratio (1 - w)).
    """
    codes = wide_code(np.arange(NARROW_LAST + 1)) if narrow else np.arange(STEPS + 1)
    if ratio == 1.0:
        return codes**2
    weights = (codes / STEPS) ** 2
    levels: Numbers = np.ceil(STEPS**2 * weights / (weights + ratio * (1 - weights))).astype(np.int64)
    return levels


def value_codes(values: Floats) -> tuple[Bytes, Words]:
    """For the weights of value numbers 0, 1, ... (float32, ascending): each one's code, and each code's first number.

    Returns (uint8 [n], uint32 [256]). A weight of 0 has code 0.
    """
    top = float(values[-1])
    codes = np.ceil(STEPS * np.sqrt(values.astype(np.float64) / top))
    codes = np.where(values > 0, np.clip(codes, 1, STEPS), 0).astype(np.uint8)
    return codes, np.searchsorted(codes, np.arange(STEPS + 1)).astype(np.uint32)
