"""What the kernel rests on: codes that bound weights and give them back, blocks that are found again, the heap."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.numba_cache import njit
from ratchet.retrieval.encoders.vectors import WEIGHTS
from ratchet.retrieval.sparse import bits, lists, quantisation, selection
from ratchet.retrieval.sparse.postings import WINDOW
from ratchet.retrieval.sparse.quantisation import NARROW_LAST, STEPS, value_codes, wide_code
from tests.helpers.pages import ROOT

INNER = (
    quantisation.frequency_code,
    quantisation.smallest_frequency,
    lists.coarse_steps,
    bits.screen_bits,
    selection.kth_largest,
    selection.push,
)
frequency_code, smallest_frequency, coarse_steps, screen_bits, kth_largest, push = (
    njit(cache=True)(function.py_func) for function in INNER
)
"""Functions that only kernels call, compiled to be called from Python."""

NORMS = st.one_of(st.sampled_from([0.0, 1e-9, 0.54, 0.9, 1.5, 3.0, 1e3, 1e6]), st.floats(0, 1e6, allow_subnormal=False))

# Codes


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.one_of(st.integers(1, 60), st.integers(1, 100_000)), NORMS)
def test_a_frequency_code_bounds_the_weight_and_gives_the_frequency_back(frequency: int, norm: float) -> None:
    code = frequency_code(frequency, norm)
    assert 1 <= code <= NARROW_LAST
    # Rounding may put a weight on the wrong side of an edge by a few units in the last place of a float64.
    assert frequency / (frequency + norm) <= (wide_code(code) / STEPS) ** 2 * (1 + 1e-14)
    smallest = smallest_frequency(code, norm)
    assert smallest == frequency if code < NARROW_LAST else smallest <= frequency
    assert frequency_code(smallest, norm) == code
    assert smallest == 1 or frequency_code(smallest - 1, norm) < code


def test_the_last_narrow_code_stands_for_the_largest_code() -> None:
    assert wide_code(NARROW_LAST) == STEPS


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

BLOCKS_CHECK = """
import numpy as np
from ratchet.index_build.postings import encode_lists, max_region_bytes
from ratchet.core.numba_cache import njit
from ratchet.retrieval.sparse import bits, lists, postings
from ratchet.retrieval.sparse.postings import OVERWRITE, WINDOW
from ratchet.retrieval.sparse.quantisation import NARROW_LAST, STEPS
from ratchet.retrieval.sparse.selection import AT, BASE, ENTRIES, KIND, ROW
inner = lists.open_list, lists.add_window, lists.add_bits_blocks, postings.find_entry, bits.screen_bits
open_list, add_window, add_bits_blocks, find_entry, screen_bits = (njit(cache=True)(one.py_func) for one in inner)
random = np.random.default_rng(4)
print(bits.SCREENS, bits.SHUFFLES)
found = set()
for narrow in (True, False):
    for size in (WINDOW, 1001, 100):
        for share in (1.0, 0.5, 0.1, 0.05, 0.01, 0.001, 0.0001):
            there = random.random(size) < share
            there[:70] |= share == 0.01  # all in one bucket, and the last chunk alone in its own
            there[-1] = True
            count = int(there.sum())
            codes = random.integers(1, 1 + (NARROW_LAST if narrow else STEPS), count).astype(np.uint8)
            places = np.zeros(0 if narrow else count, np.uint8)
            data, region = np.zeros(max_region_bytes(count, 1) + 2 * bits.OVERREAD, np.uint8), np.zeros(1, np.int64)
            offsets, chunks = np.array([0, count]), np.flatnonzero(there).astype(np.uint32)
            used = encode_lists(offsets, chunks, codes, places, size, data, region)
            data = data[: (used + bits.OVERREAD) // 4 * 4].copy()
            data.flags.writeable = False
            files = data, data.view(np.uint32)
            for weight in (1, 700, 65000):
                steps = np.arange(1 + (NARROW_LAST if narrow else STEPS), dtype=np.int64)
                steps = ((steps * steps * weight >> 16) + (steps > 0)).astype(np.uint16)
                if narrow:  # what a code bounds depends on the k1 and b that are asked
                    steps[1:] = random.integers(1, 1 + weight, NARROW_LAST)
                bounds = random.integers(0, 500, WINDOW).astype(np.uint16)
                expected = bounds.astype(np.int64)
                expected[:size][there] += steps[codes]
                rows, room = np.zeros((1, ROW), np.int64), np.zeros(WINDOW + OVERWRITE, np.uint16)
                open_list(files, 0, rows[0], (0, 1), narrow)
                add_window(files, rows[0], 0, size, bounds, steps, weight, 1, room, narrow)
                add_bits_blocks(files, rows, size, bounds, np.array([weight]), steps.reshape(1, -1), room, narrow)
                assert np.array_equal(bounds, expected), (narrow, size, share, weight)
            kind, at, base, entries = (int(rows[0, column]) for column in (KIND, AT, BASE, ENTRIES))
            found.add(kind)
            code_of = dict(zip(chunks.tolist(), codes.tolist()))
            for chunk in {*range(0, size, 1 + size // 300), *chunks[:300].tolist(), size - 1}:
                assert find_entry(data, kind, at, base, entries, size, chunk, narrow)[0] == code_of.get(chunk, 0)
assert len(found) == 3, found
nothing = np.zeros(64, np.uint8)  # it is compiled on every machine
place = np.zeros(1, np.int64)
some = np.zeros(64, np.int32)
assert screen_bits(nothing, nothing, place, place, 0, nothing.reshape(1, 64), 64, some, True) == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "features",
    ["", "+avx2", pytest.param(None, marks=pytest.mark.numeric)],
    ids=["one by one", "AVX2", "this machine's"],
)
def test_every_way_to_read_a_block_gives_its_chunks_and_codes(features: str | None) -> None:
    if features and features[1:] not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"the processor has no {features[1:]}")
    if features is None:
        return exec(BLOCKS_CHECK, {})
    environment = os.environ | {"NUMBA_CPU_FEATURES": features}
    run = subprocess.run(
        [sys.executable, "-c", BLOCKS_CHECK], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["False", str(features == "+avx2")]


@pytest.mark.skipif(not bits.SCREENS, reason="needs AVX-512 with VBMI and VBMI2")
@pytest.mark.parametrize("size", [WINDOW, 1001, 64, 1])
@pytest.mark.parametrize("lists", [0, 1, 7])
@pytest.mark.parametrize("narrow", [True, False])
def test_screening_finds_the_chunks_whose_coarse_bounds_are_full_and_leaves_nothing(
    size: int, lists: int, narrow: bool
) -> None:
    random = np.random.default_rng(size)
    bounds = np.zeros(WINDOW, np.uint8)
    bounds[:size] = np.where(random.random(size) < 0.9, random.integers(0, 100, size), 255)
    tables = random.integers(0, 120, (lists, bits.CLASSES)).astype(np.uint8)
    if narrow:
        tables = np.tile(tables[:, :16], 4)
    expected = bounds.astype(np.int64)
    parts, masks, starts, at = [], np.zeros(lists, np.int64), np.zeros(lists, np.int64), 0
    for i in range(lists):
        there = (np.arange((size + 63) // 64 * 64) < size) & (random.random((size + 63) // 64 * 64) < (i + 1) / lists)
        codes = random.integers(1, 1 + (NARROW_LAST if narrow else STEPS), int(there.sum())).astype(np.uint8)
        expected[: len(there)][there] += tables[i, codes if narrow else codes >> 2]
        if narrow:
            groups = np.split(codes, np.cumsum(there.reshape(-1, 64).sum(axis=1))[:-1])
            padded = [np.append(group, np.zeros(len(group) % 2, np.uint8)).reshape(-1, 2) for group in groups]
            codes = np.concatenate([pairs[:, 0] | pairs[:, 1] << 4 for pairs in padded])
        parts += [np.packbits(there, bitorder="little"), codes]
        masks[i], starts[i] = at, at + len(parts[-2])
        at += len(parts[-2]) + len(codes)
    data = np.concatenate([*parts, np.zeros(bits.OVERREAD, np.uint8)])
    ends = [*masks[1:], at]
    candidates = np.empty(WINDOW, np.int32)
    found = screen_bits(bounds, data, masks, starts, lists, tables, size, candidates, narrow)
    assert candidates[:found].tolist() == np.flatnonzero(expected >= bits.SATURATED).tolist()
    assert starts.tolist() == ends[:lists], "every code was read"
    assert not bounds.any()


@settings(deadline=None)
@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=9), st.floats(1e-30, 1e30), st.floats(1e-30, 1e30))
def test_chunks_that_reach_the_best_have_full_coarse_bounds(largest: list[int], scale: float, best: float) -> None:
    for last in (STEPS, NARROW_LAST):
        bounds = (np.array(largest)[:, None] * np.arange(last + 1) ** 2 // last**2).astype(np.uint16)
        steps = np.zeros(bounds.shape, np.uint8)
        tables = np.zeros((len(largest), bits.CLASSES), np.uint8)
        coarse_steps(bounds, scale, best, steps, tables)
        assert (steps >= np.minimum(bits.SATURATED * (bounds * scale / best), bits.SATURATED)).all()
        assert np.array_equal(steps > 0, bounds > 0), "what is in no list has no bound"
        classes = np.arange(STEPS + 1) >> 2 if last == STEPS else np.arange(bits.CLASSES)
        assert (tables[:, classes] >= steps[:, np.arange(len(classes)) % (last + 1)]).all()


# Selection


@settings(deadline=None)
@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=40), st.data())
def test_the_kth_largest_is_that_of_the_sorted_values(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    assert kth_largest(np.array(values, np.uint16), len(values), k) == sorted(values)[-k]


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
