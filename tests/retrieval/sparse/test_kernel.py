"""What the kernel rests on: codes that bound weights and give them back, blocks that are found again, the heap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ratchet.numba_cache import njit
from ratchet.packages import ROOT
from retrieval.encoders.vectors import WEIGHTS
from retrieval.sparse import bits, quantisation, screening, selection
from retrieval.sparse.postings import WINDOW
from retrieval.sparse.quantisation import STEPS, value_codes

INNER = (
    quantisation.weight_code,
    quantisation.frequency_code,
    quantisation.smallest_frequency,
    screening.coarse_steps,
    bits.screen_bits,
    selection.push,
)
weight_code, frequency_code, smallest_frequency, coarse_steps, screen_bits, push = (
    njit(cache=True)(function.py_func) for function in INNER
)
"""Functions that only kernels call, compiled to be called from Python."""

NORMS = st.one_of(st.sampled_from([0.0, 1e-9, 0.54, 0.9, 1.5, 3.0, 1e3, 1e6]), st.floats(0, 1e6, allow_subnormal=False))

# Codes


@settings(deadline=None)
@given(st.floats(1e-40, 100), st.floats(1e-40, 100))
def test_a_weight_code_is_the_smallest_that_bounds_the_weight(weight: float, top: float) -> None:
    assume(weight <= top)
    code = weight_code(weight, top)
    assert 1 <= code <= STEPS
    # Rounding may put a weight on the wrong side of an edge by a few units in the last place of a float64.
    assert weight <= top * (code / STEPS) ** 2 * (1 + 1e-14)
    assert code == 1 or weight >= top * ((code - 1) / STEPS) ** 2 * (1 - 1e-14)


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.integers(1, 60), st.integers(1, 100_000)), NORMS)
def test_a_frequency_comes_back_from_its_code(frequency: int, norm: float) -> None:
    code = frequency_code(frequency, norm)
    smallest = smallest_frequency(code, norm)
    assert smallest <= frequency
    assert frequency_code(smallest, norm) == code
    assert smallest == 1 or frequency_code(smallest - 1, norm) < code


@pytest.mark.parametrize("largest", [1, 2, 100, 0x3F80, 0x4000, len(WEIGHTS) - 1])
def test_value_codes_bound_and_give_back_every_bfloat16(largest: int) -> None:
    values = WEIGHTS[: largest + 1]
    codes, firsts = value_codes(values)
    assert codes[0] == 0 and (codes[1:] > 0).all() and codes[-1] == STEPS
    numbers = np.arange(len(values))
    places = numbers - firsts[codes]
    assert (places >= 0).all()
    assert np.array_equal(firsts[codes] + places, numbers)
    # The first number of a code is indeed the first that has it.
    assert np.array_equal(firsts[codes], np.searchsorted(codes, codes))
    bounds = float(values[-1]) * (codes.astype(np.float64) / STEPS) ** 2
    assert (values <= bounds * (1 + 1e-14)).all()
    below = float(values[-1]) * ((codes.astype(np.float64) - 1) / STEPS) ** 2
    assert (values[codes > 1] >= below[codes > 1] * (1 - 1e-14)).all()


# Blocks

BITS_CHECK = """
import numpy as np
from ratchet.numba_cache import njit
from retrieval.sparse import bits
add_bits, screen_bits = njit(bits.add_bits.py_func), njit(bits.screen_bits.py_func)
random = np.random.default_rng(4)
print(bits.EXPANDS, bits.SHUFFLES)
for share in (0.0, 0.1, 0.5, 1.0):
    there = random.random(1 << 16) < share
    codes = random.integers(1, 256, int(there.sum())).astype(np.uint8)
    data = np.concatenate([np.packbits(there, bitorder="little"), codes, np.zeros(bits.OVERREAD, np.uint8)])
    for weight in (1, 700, 65000):
        bounds = random.integers(0, 500, 1 << 16).astype(np.uint16)
        expected = bounds.astype(np.int64)
        expected[there] += (codes.astype(np.int64) ** 2 * weight >> 16) + 1
        at = len(there) // 8
        for first in range(0, 1 << 16, bits.STRIP):
            at = add_bits(bounds, data, 0, at, first, first + bits.STRIP, weight)
        assert at == len(data) - bits.OVERREAD, (share, weight, at)
        assert np.array_equal(bounds, expected), (share, weight)
nothing = np.zeros(64, np.uint8)  # it is compiled on every machine
place = np.zeros(1, np.int64)
assert screen_bits(nothing, nothing, place, place, 0, nothing.reshape(1, 64), 64, np.zeros(64, np.int32)) == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("features", ["", "+avx2", None], ids=["one by one", "AVX2", "this machine's"])
def test_every_way_to_add_a_block_of_bits_gives_the_same_bounds(features: str | None) -> None:
    if features and features[1:] not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"the processor has no {features[1:]}")
    if features is None:
        return exec(BITS_CHECK, {})
    environment = os.environ | {"NUMBA_CPU_FEATURES": features}
    run = subprocess.run(
        [sys.executable, "-c", BITS_CHECK], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["False", str(features == "+avx2")]


@pytest.mark.skipif(not bits.SCREENS, reason="needs AVX-512 with VBMI and VBMI2")
@pytest.mark.parametrize("size", [WINDOW, 1001, 64, 1])
@pytest.mark.parametrize("lists", [0, 1, 7])
def test_screening_finds_the_chunks_whose_coarse_bounds_are_full_and_leaves_nothing(size: int, lists: int) -> None:
    random = np.random.default_rng(size)
    bounds = np.zeros(WINDOW, np.uint8)
    bounds[:size] = np.where(random.random(size) < 0.9, random.integers(0, 100, size), 255)
    tables = random.integers(0, 120, (lists, bits.CLASSES)).astype(np.uint8)
    expected = bounds.astype(np.int64)
    parts, masks, starts, at = [], np.zeros(lists, np.int64), np.zeros(lists, np.int64), 0
    for i in range(lists):
        there = (np.arange((size + 63) // 64 * 64) < size) & (random.random((size + 63) // 64 * 64) < (i + 1) / lists)
        codes = random.integers(1, 256, int(there.sum())).astype(np.uint8)
        parts += [np.packbits(there, bitorder="little"), codes]
        masks[i], starts[i] = at, at + len(parts[-2])
        at += len(parts[-2]) + len(codes)
        expected[: len(there)][there] += tables[i, codes >> 2]
    data = np.concatenate([*parts, np.zeros(bits.OVERREAD, np.uint8)])
    ends = [*masks[1:], at]
    candidates = np.empty(WINDOW, np.int32)
    found = screen_bits(bounds, data, masks, starts, lists, tables, size, candidates)
    assert candidates[:found].tolist() == np.flatnonzero(expected >= bits.SATURATED).tolist()
    assert starts.tolist() == ends[:lists], "every code was read"
    assert not bounds.any()


@settings(deadline=None)
@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=9), st.floats(1e-30, 1e30), st.floats(1e-30, 1e30))
def test_chunks_that_reach_the_best_have_full_coarse_bounds(largest: list[int], scale: float, best: float) -> None:
    bounds = (np.array(largest)[:, None] * np.arange(STEPS + 1) ** 2 // STEPS**2).astype(np.uint16)
    steps = np.zeros(bounds.shape, np.uint8)
    tables = np.zeros((len(largest), bits.CLASSES), np.uint8)
    coarse_steps(bounds, scale, best, steps, tables)
    assert (steps >= np.minimum(bits.SATURATED * (bounds * scale / best), bits.SATURATED)).all()
    assert np.array_equal(steps > 0, bounds > 0), "a bridge of GAPS is no posting"
    assert (tables[:, np.arange(STEPS + 1) >> 2] >= steps).all()


# Selection


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.25, 1.0, 1.0, 2.0]), st.integers(0, 99)), max_size=60), st.integers(1, 20))
def test_the_heap_keeps_the_best_whatever_the_order(hits: list[tuple[float, int]], k: int) -> None:
    hits = list(dict.fromkeys(hits))
    scores, chunks = np.zeros(k), np.zeros(k, np.int64)
    held = 0
    for score, chunk in hits:
        held = push(scores, chunks, held, score, chunk)
        if held:
            kept = list(zip(scores[:held].tolist(), chunks[:held].tolist(), strict=True))
            assert kept[0] == max(kept, key=lambda hit: (-hit[0], hit[1])), "the worst stands at the root"
    best = sorted(hits, key=lambda hit: (-hit[0], hit[1]))[:k]
    assert sorted(zip(scores[:held].tolist(), chunks[:held].tolist(), strict=True)) == sorted(best)
