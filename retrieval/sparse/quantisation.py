"""One byte per posting that bounds its weight from above, and the way back from it to the exact weight.

A posting's weight w in (0, top] gets the code c = ceil(255 * sqrt(w / top)), so that w <= top * (c / 255)^2. The square
gives small weights, which most are, the finer steps. What the byte loses comes back in one of two ways:

- BM25: w = tf / (tf + norm) with the chunk's norm known, and nearly always one tf alone gives a code. Where several
  do, the smallest is meant, unless the posting stands in the shard's list of exceptions.
- learned sparse: weights are a fixed function of a bfloat16, whose bits are consecutive small integers, the value
  numbers. The posting keeps 4 bits more: its place among the numbers of its code, or FAR for the list of exceptions.

Only additions, products, quotients and square roots, which IEEE 754 rounds in one way: the code that a search computes
is the code that the build computed, whatever the machine.
"""

from __future__ import annotations

import numpy as np

from ratchet.numba_cache import inner
from retrieval.arrays import Bytes, Floats, Words

STEPS = 255
FAR = 15


@inner(inline="always")
def weight_code(weight: float, top: float) -> int:
    """The smallest code c in 1 .. 255 with weight <= top * (c / 255)^2, for 0 < weight <= top."""
    code = int(np.ceil(STEPS * np.sqrt(weight / top)))
    return min(max(code, 1), STEPS)


@inner(inline="always")
def length_norm(length: int, k1: float, b: float, mean_length: float) -> float:
    """What a chunk's length adds to tf in BM25's denominator: k1 * (1 - b + b * length / mean length)."""
    return k1 * (1.0 - b + b * (length / mean_length))


@inner(inline="always")
def frequency_code(frequency: int, norm: float) -> int:
    """The code of a BM25 posting; top is 1."""
    return weight_code(frequency / (frequency + norm), 1.0)


@inner
def smallest_frequency(code: int, norm: float) -> int:
    """The smallest term frequency that has this code beside this norm; 0 where none has."""
    below = ((code - 1) / STEPS) * ((code - 1) / STEPS)
    frequency = max(1, int(norm * below / (1.0 - below)))
    # The division above is rounded: step to the exact edge.
    while frequency > 1 and frequency_code(frequency - 1, norm) >= code:
        frequency -= 1
    while frequency_code(frequency, norm) < code:
        frequency += 1
    return frequency if frequency_code(frequency, norm) == code else 0


def value_codes(values: Floats) -> tuple[Bytes, Words]:
    """For the weights of value numbers 0, 1, ... (float32, ascending): each one's code, and each code's first number.

    Returns (uint8 [n], uint32 [256]). A weight of 0 has code 0.
    """
    top = float(values[-1])
    codes = np.ceil(STEPS * np.sqrt(values.astype(np.float64) / top))
    codes = np.where(values > 0, np.clip(codes, 1, STEPS), 0).astype(np.uint8)
    return codes, np.searchsorted(codes, np.arange(STEPS + 1)).astype(np.uint32)
