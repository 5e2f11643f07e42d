"""Dense vectors: faiss's exact ranking against brute force, and its other indexes."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.core.errors import UserError
from ratchet.retrieval.backends import dense as backend
from ratchet.retrieval.backends.dense import DenseRanker, build_faiss


def unit(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


def ranker(
    folder: Path,
    shards: Sequence[np.ndarray],
    queries: np.ndarray,
    factory: str = "Flat",
    parameters: str = "",
    longest: float = 1.0,
) -> DenseRanker:
    files = []
    for number, shard in enumerate(shards):
        data = bytearray()
        build_faiss(shard.shape[1], factory, partial(np.array_split, shard, 2), data.extend)
        files.append(folder / f"{number}.faiss")
        files[-1].write_bytes(data)
    return DenseRanker(files, lambda texts: queries[[int(text) for text in texts]], parameters, longest=longest)


def exact(documents: np.ndarray, query: np.ndarray, k: int) -> list[tuple[float, int]]:
    scores = (documents.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    return sorted(zip(scores.tolist(), range(len(scores)), strict=True), key=lambda pair: (-pair[0], pair[1]))[:k]


@pytest.mark.slow
@pytest.mark.numeric
@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    dimension=st.integers(1, 20),
    distinct=st.integers(1, 30),
    k=st.integers(0, 200),
    block=st.integers(1, 400),
    together=st.integers(1, 9),
)
def test_is_brute_force(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    sizes: list[int],
    dimension: int,
    distinct: int,
    k: int,
    block: int,
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
        patch.setattr(backend, "SPARE", 1)
        asked = ["3", "0", "1", "2", "3", "0", "1", "2", "3"][-together:]
        rankings = ranker(tmp_path_factory.mktemp("dense"), shards, queries).rank(asked, k)
    for query, ranking in zip(queries[list(map(int, asked))], rankings, strict=True):
        assert list(zip(ranking.scores.tolist(), ranking.chunks.tolist(), strict=True)) == exact(documents, query, k)


@pytest.mark.slow
def test_close_scores_are_ranked_exactly(tmp_path: Path) -> None:
    """Vectors that float32 products cannot tell apart: one query alone or in a group, the exact order."""
    random = np.random.default_rng(0)
    base = random.standard_normal((1, 384))
    documents = unit(base + 1e-7 * random.standard_normal((3000, 384)))
    queries = unit(base + 1e-3 * random.standard_normal((40, 384)))
    whole = ranker(tmp_path, [documents[:1700], documents[1700:]], queries)
    together = whole.rank([str(i) for i in range(40)], 50)
    for i in (0, 27, 39):
        (alone,) = whole.rank([str(i)], 50)
        assert list(zip(alone.scores.tolist(), alone.chunks.tolist(), strict=True)) == exact(documents, queries[i], 50)
        assert alone.scores.tobytes() == together[i].scores.tobytes()


@pytest.mark.numeric
def test_vectors_of_any_length_are_ranked_exactly(tmp_path: Path) -> None:
    """Long vectors have larger rounding errors of float32."""
    random = np.random.default_rng(0)
    base = random.standard_normal((1, 64))
    documents = (1000 * (base + 1e-6 * random.standard_normal((2000, 64)))).astype(np.float32)
    queries = (300 * (base + 1e-3 * random.standard_normal((10, 64)))).astype(np.float32)
    longest = float(np.linalg.norm(documents.astype(np.float64), axis=1).max())
    index = ranker(tmp_path, [documents[:700], documents[700:]], queries, longest=longest)
    for query, ranking in zip(queries, index.rank([str(i) for i in range(10)], 30), strict=True):
        assert list(zip(ranking.scores.tolist(), ranking.chunks.tolist(), strict=True)) == exact(documents, query, 30)


@pytest.mark.parametrize(
    "factory",
    [
        "HNSW32",
        "SQ8",
        pytest.param("IVF16,PQ8x4", marks=pytest.mark.slow),
        pytest.param("OPQ8,IVF16,PQ8x4", marks=pytest.mark.slow),
    ],
)
def test_other_indexes_of_faiss_find_most_of_the_best(tmp_path: Path, factory: str) -> None:
    vectors = unit(np.random.default_rng(0).standard_normal((900, 16)))
    parameters = "nprobe=16" if "IVF" in factory else ""
    found = ranker(tmp_path, [vectors[:450], vectors[450:]], vectors, factory, parameters).rank(["1", "500"], 20)
    for at, ranking in zip((1, 500), found, strict=True):
        best = {chunk for _, chunk in exact(vectors, vectors[at], 20)}
        assert len(ranking) == 20 and len(best & set(ranking.chunks.tolist())) >= 8
        assert at in ranking.chunks[:3]


def test_any_index_of_faiss_with_its_search_parameters(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Inverted lists that are all looked at find what is best; a shard that is too small for them is searched so."""
    vectors = unit(np.random.default_rng(0).standard_normal((300, 16)))
    shards = [vectors[:290], vectors[290:]]
    whole = ranker(tmp_path, shards, vectors, "IVF16,Flat", "nprobe=16")
    assert "a shard of 10 vectors is too small for index.faiss: IVF16,Flat" in caplog.text
    for at, ranking in enumerate(whole.rank([str(i) for i in range(20)], 5)):
        assert ranking.chunks.tolist() == [chunk for _, chunk in exact(vectors, vectors[at], 5)]
    assert all(len(ranking) < 300 for ranking in ranker(tmp_path, shards, vectors, "IVF16,Flat").rank(["0"], 300))
    with pytest.raises(UserError, match=r"index\.faiss_search: 'nprobes=16'"):
        ranker(tmp_path, shards, vectors, "IVF16,Flat", "nprobes=16")
    with pytest.raises(UserError, match=r"index\.faiss: 'Flatt' is not a string for faiss's index_factory"):
        ranker(tmp_path, shards, vectors, "Flatt")
