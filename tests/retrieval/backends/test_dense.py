"""Dense vectors: the exact ranking against brute force."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.errors import UserError
from ratchet.retrieval.backends import codes
from ratchet.retrieval.backends import dense as backend
from ratchet.retrieval.backends.codes import encode_blocks
from ratchet.retrieval.backends.dense import DenseRanker
from tests.helpers.pages import ROOT


def unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


def ranker(shards: Sequence[np.ndarray], queries: np.ndarray) -> DenseRanker:
    coded = [encode_blocks(shard).ravel() for shard in shards]
    return DenseRanker(shards, coded, lambda texts: queries[[int(text) for text in texts]], 3)


def exact(documents: np.ndarray, query: np.ndarray, k: int) -> list[tuple[float, int]]:
    """Products added in order of the dimensions, in Python's own floats."""
    scored = []
    for chunk, row in enumerate(documents.astype(np.float64).tolist()):
        score = 0.0
        for x, y in zip(row, query.astype(np.float64).tolist(), strict=True):
            score += x * y
        scored.append((-score, chunk))
    return [(-score, chunk) for score, chunk in sorted(scored)[:k]]


@pytest.mark.numeric
@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    dimension=st.integers(1, 20),
    distinct=st.integers(1, 30),
    k=st.integers(0, 200),
    block=st.integers(1, 400),
    crowd=st.integers(0, 20),
    one_by_one=st.booleans(),
    together=st.integers(1, 9),
)
def test_is_brute_force(
    seed: int,
    sizes: list[int],
    dimension: int,
    distinct: int,
    k: int,
    block: int,
    crowd: int,
    one_by_one: bool,
    together: int,
) -> None:
    """Any cut into shards and blocks, many equal vectors, zero vectors, k beyond the corpus; to the last bit."""
    random = np.random.default_rng(seed)
    kinds = unit(random.standard_normal((distinct, dimension)))
    kinds[0] = 0
    documents = kinds[random.integers(0, distinct, sum(sizes))]
    queries = np.concatenate([unit(random.standard_normal((3, dimension))), kinds[:1]])
    shards = np.split(documents, np.cumsum(sizes)[:-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "SCORED_AT_ONCE", block)
        patch.setattr(codes, "MAX_SPARE_CANDIDATES", crowd)
        patch.setattr(codes, "MAX_K", 0 if one_by_one else 1 << 12)
        patch.setattr(codes, "SPLIT_BYTES", 1)
        asked = ["3", "0", "1", "2", "3", "0", "1", "2", "3"][-together:]
        rankings = ranker(shards, queries).rank(asked, k)
    for query, ranking in zip(queries[list(map(int, asked))], rankings, strict=True):
        assert list(zip(ranking.scores.tolist(), ranking.chunks.tolist(), strict=True)) == exact(documents, query, k)


def test_close_scores_are_ranked_exactly() -> None:
    """Vectors that float32 products cannot tell apart: one query alone or in a group, the exact order."""
    random = np.random.default_rng(0)
    base = random.standard_normal((1, 384))
    documents = unit(base + 1e-7 * random.standard_normal((3000, 384)))
    queries = unit(base + 1e-3 * random.standard_normal((100, 384)))
    whole = ranker([documents[:1700], documents[1700:]], queries)
    together = whole.rank([str(i) for i in range(100)], 50)
    for i in (0, 57, 99):
        (alone,) = whole.rank([str(i)], 50)
        assert alone.chunks.tolist() == together[i].chunks.tolist()
        assert alone.scores.tobytes() == together[i].scores.tobytes()
        truth = np.array([math.fsum(row) for row in documents.astype(np.float64) * queries[i].astype(np.float64)])
        assert together[i].scores == pytest.approx(np.sort(truth)[::-1][:50], abs=1e-14)


def test_many_equal_vectors_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of chunks tie for the best rank: candidates stay few, and a better chunk that comes late still wins."""
    monkeypatch.setattr(codes, "MAX_SPARE_CANDIDATES", 100)
    sizes: list[int] = []
    scores = DenseRanker._scores

    def counted(self: DenseRanker, vector: Any, chunks: Any) -> Any:
        sizes.append(len(chunks))
        return scores(self, vector, chunks)

    monkeypatch.setattr(DenseRanker, "_scores", counted)
    vectors = unit(np.random.default_rng(0).standard_normal((2, 8)))
    documents = np.repeat(vectors[:1], 20_000, axis=0)
    documents[15_000] = vectors[1]
    rankings = ranker([documents], vectors).rank(["0", "1"], 3)
    assert rankings[0].chunks.tolist() == [0, 1, 2]
    assert rankings[1].chunks.tolist() == [15_000, 0, 1]
    assert max(sizes) < 1000


def test_what_rounding_to_codes_hides_is_found() -> None:
    """The best chunk's codes, or the query's, make it look worse than another: by almost half a scale a number."""
    rounded = np.concatenate([[127], np.full(63, 10.49)])
    between = np.concatenate([[127], np.repeat([11.0, 10.0], [20, 43])])
    documents = (np.stack([between, rounded]) / np.linalg.norm(rounded)).astype(np.float32)
    flat, one = np.full((1, 64), 1 / 8, np.float32), np.zeros((1, 64), np.float32)
    (ranking,) = ranker([documents], flat).rank(["0"], 1)
    assert ranking.chunks.tolist() == [1]
    one[0, 0] = 96.5 / 127
    (ranking,) = ranker([np.concatenate([one, flat])], documents[1:]).rank(["0"], 1)
    assert ranking.chunks.tolist() == [1]


def test_codes_of_other_vectors_are_refused() -> None:
    documents = unit(np.random.default_rng(0).standard_normal((65, 8)))
    with pytest.raises(UserError, match="build the index again"):
        DenseRanker([documents], [encode_blocks(documents[:64]).ravel()], lambda texts: documents[:1])


PROCESSOR_CHECK = """
import numpy as np
from ratchet.retrieval.backends import int8
from ratchet.retrieval.backends.codes import encode_blocks
from ratchet.retrieval.backends.dense import DenseRanker
random = np.random.default_rng(0)
vectors = random.standard_normal((1000, 37)).astype(np.float32)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
encode = lambda texts: vectors[: len(texts)]
coded = DenseRanker([vectors], [encode_blocks(vectors).ravel()], encode)
for count in (1, 6):
    for query, ranking in zip(vectors, coded.rank(["x"] * count, 20)):
        scores = coded._scores(query.astype(np.float64), np.arange(1000))
        assert ranking.chunks.tolist() == np.argsort(-scores, kind="stable")[:20].tolist()
print(int8.VNNI)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "features", ["+avx2", pytest.param(None, marks=pytest.mark.numeric)], ids=["AVX2", "this machine's"]
)
def test_every_processor_finds_the_same(features: str | None) -> None:
    if features and features[1:] not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"the processor has no {features[1:]}")
    if features is None:
        return exec(PROCESSOR_CHECK, {})
    environment = os.environ | {"NUMBA_CPU_FEATURES": features}
    command = [sys.executable, "-c", PROCESSOR_CHECK]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["False"]


def test_another_models_vectors_are_refused() -> None:
    documents = np.ones((4, 8), np.float32)
    with pytest.raises(UserError, match="vectors of 8 dimensions, and the model gives 4"):
        ranker([documents], np.ones((1, 4), np.float32)).rank(["0"], 1)
    with pytest.raises(UserError, match="same dimension"):
        ranker([documents, np.ones((4, 9), np.float32)], np.ones((1, 8), np.float32))
