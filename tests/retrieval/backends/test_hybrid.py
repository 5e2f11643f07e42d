"""Reciprocal rank fusion against its formula, and a hybrid of two engines over the same chunks."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.backends.hybrid import HybridRanker, fuse
from retrieval.index import Ranking

LISTS = st.lists(st.lists(st.integers(0, 30), unique=True, max_size=20), min_size=1, max_size=4)


def ranking(chunks: Sequence[int]) -> Ranking:
    return Ranking(-np.arange(float(len(chunks))), np.array(chunks, np.int64))


@given(LISTS, st.integers(0, 40))
def test_is_the_formula(lists: list[list[int]], k: int) -> None:
    sums: dict[int, Fraction] = {}
    for chunks in lists:
        for rank, chunk in enumerate(chunks, 1):
            sums[chunk] = sums.get(chunk, Fraction(0)) + Fraction(1, 60 + rank)
    fused = fuse([ranking(chunks) for chunks in lists], k)
    assert len(fused) == min(k, len(sums))
    expected = sorted(sums, key=lambda chunk: (-float(sums[chunk]), chunk))
    assert fused.scores == pytest.approx([float(sums[chunk]) for chunk in expected[:k]], rel=1e-15)
    # Sums that are closer than rounding may stand in either order.
    assert [float(sums[chunk]) for chunk in fused.chunks] == pytest.approx(fused.scores, rel=1e-15)


def test_ties_by_chunk_number() -> None:
    fused = fuse([ranking([9, 4]), ranking([4, 9]), ranking([7]), ranking([2])], 10)
    assert fused.chunks.tolist() == [4, 9, 2, 7]
    assert fused.scores[0] == fused.scores[1] == 1 / 62 + 1 / 61


class Fixed:
    """An engine that always answers with the beginning of one list."""

    def __init__(self, chunks: list[int], size: int = 100) -> None:
        self.chunks, self.size = chunks, size

    def __len__(self) -> int:
        return self.size

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        return [ranking(self.chunks[:k]) for _ in queries]


def test_pages_within_depth_neither_skip_nor_repeat() -> None:
    hybrid = HybridRanker([Fixed(list(range(100))), Fixed(list(range(99, -1, -1)))], depth=50)
    (whole,) = hybrid.rank(["q"], 50)
    for k in (1, 10, 49):
        (part,) = hybrid.rank(["q"], k)
        assert part.chunks.tolist() == whole.chunks[:k].tolist()
    assert [len(part) for part in hybrid.rank(["a", "b"], 80)] == [80, 80]


def test_depth_looks_below_k() -> None:
    """Chunk 5 is second in both lists and first in none: with a depth of 1 nobody would see it."""
    hybrid = HybridRanker([Fixed([1, 5]), Fixed([2, 5])], depth=10)
    assert hybrid.rank(["q"], 1)[0].chunks.tolist() == [5]
