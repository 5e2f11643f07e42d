"""Milvus Lite on a file against brute force: exact, resumed after a SIGKILL, never half-filled or another model's."""

import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from ratchet.core.errors import UserError
from ratchet.retrieval.backends.milvus import (
    MAX_RANKS,
    MilvusRanker,
    VectorSpace,
    build_milvus,
)
from ratchet.retrieval.encoders.vectors import SparseVectors
from ratchet.retrieval.index import Ranking
from tests.helpers.run_code import run_code

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

VOCABULARY = 128_256
CHUNKS = 1200
DENSE = VectorSpace("dense model, corpus", sparse=False, dimension=32, chunks=CHUNKS)
SPARSE = VectorSpace("sparse model, corpus", sparse=True, dimension=VOCABULARY, chunks=CHUNKS)


def dense_vectors(n: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((n, DENSE.dimension)).astype(np.float32)
    vectors[: n // 100] = vectors[0]  # ties
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def sparse_vectors(n: int, seed: int) -> SparseVectors:
    """Rows of 0 to 60 terms, frequent ones among them."""
    random = np.random.default_rng(seed)
    rows = [np.unique((VOCABULARY * random.random(size) ** 6).astype(np.uint32)) for size in random.integers(0, 60, n)]
    rows[0] = np.empty(0, np.uint32)
    offsets = np.cumsum([0, *map(len, rows)])
    return SparseVectors(offsets, np.concatenate(rows), random.integers(0x3C00, 0x4080, offsets[-1]).astype(np.uint16))


def part(vectors: SparseVectors, first: int, last: int) -> SparseVectors:
    offsets = vectors.offsets[first : last + 1]
    where = slice(offsets[0], offsets[-1])
    return SparseVectors(offsets - offsets[0], vectors.terms[where], vectors.codes[where])


def matrix(vectors: SparseVectors, dimension: int = VOCABULARY) -> np.ndarray:
    import scipy.sparse

    shape = (len(vectors), dimension)
    return scipy.sparse.csr_array((vectors.weights().astype(np.float64), vectors.terms, vectors.offsets), shape=shape)


def check(ranking: Ranking, scores: np.ndarray, k: int) -> None:
    """`scores` are all chunks' true ones; Milvus computes in float32."""
    best = np.sort(scores)[::-1][:k]
    assert ranking.scores == pytest.approx(best, rel=1e-5, abs=1e-6)
    assert scores[ranking.chunks] == pytest.approx(ranking.scores, rel=1e-5, abs=1e-6)
    assert len(set(ranking.chunks.tolist())) == len(ranking)
    for i in range(1, len(ranking)):
        assert ranking.scores[i - 1] > ranking.scores[i] or ranking.chunks[i - 1] < ranking.chunks[i]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One file with a dense and a sparse collection."""
    config = str(tmp_path_factory.mktemp("milvus") / "vectors.db")
    dense, sparse = dense_vectors(CHUNKS, 0), sparse_vectors(CHUNKS, 0)
    build_milvus(config, DENSE, [dense[:700], dense[700:]])
    build_milvus(config, SPARSE, [part(sparse, 0, 11), part(sparse, 11, CHUNKS)])
    return config


@pytest.mark.slow
def test_dense_is_brute_force(config: str) -> None:
    documents, queries = dense_vectors(CHUNKS, 0), dense_vectors(7, 1)
    queries[0] = documents[0]  # the first twelve chunks tie
    ranker = MilvusRanker(config, DENSE, lambda texts: queries[[int(text) for text in texts]])
    assert len(ranker) == CHUNKS
    for k in (1, 10, 2000):
        for query, ranking in zip(queries, ranker.rank([str(i) for i in range(7)], k), strict=True):
            assert len(ranking) == min(k, CHUNKS)
            check(ranking, documents.astype(np.float64) @ query.astype(np.float64), k)
    assert sorted(ranker.rank(["0"], 12)[0].chunks.tolist()) == list(range(12))


@pytest.mark.slow
def test_sparse_is_brute_force(config: str) -> None:
    documents, queries = sparse_vectors(CHUNKS, 0), sparse_vectors(6, 1)
    asked: list[list[str]] = []

    def encode(texts: Sequence[str]) -> SparseVectors:
        asked.append(list(texts))
        return queries if len(texts) == 6 else part(queries, int(texts[0]), int(texts[0]) + 1)

    ranker = MilvusRanker(config, SPARSE, encode)
    truth = (matrix(documents) @ matrix(queries).T).toarray()
    for k in (10, CHUNKS):
        rankings = ranker.rank([str(i) for i in range(6)], k)
        assert len(rankings[0]) == 0  # a query without terms
        for i, ranking in enumerate(rankings):
            matching = int((truth[:, i] > 0).sum())
            assert len(ranking) == min(k, matching)
            check(ranking, truth[:, i], min(k, matching))
            (alone,) = ranker.rank([str(i)], k)
            assert alone.scores.tolist() == ranking.scores.tolist()


def test_another_models_vectors_are_refused(config: str) -> None:
    other = VectorSpace("another model, corpus", sparse=False, dimension=32, chunks=CHUNKS)
    with pytest.raises(UserError, match="build it with"):
        MilvusRanker(config, other, lambda texts: dense_vectors(len(texts), 0))
    ranker = MilvusRanker(config, DENSE, lambda texts: np.ones((len(texts), 16), np.float32))
    with pytest.raises(UserError, match="32 dimensions"):
        ranker.rank(["q"], 1)
    with pytest.raises(UserError, match=str(MAX_RANKS)):
        ranker.rank(["q"], MAX_RANKS + 1)


@pytest.mark.slow
def test_what_an_interrupted_build_left_is_sent_again(tmp_path: Path) -> None:
    uri, documents, queries = str(tmp_path / "killed.db"), sparse_vectors(CHUNKS, 0), sparse_vectors(4, 1)

    def stopped() -> Iterator[SparseVectors]:
        yield part(documents, 0, 1000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_milvus(uri, SPARSE, stopped())
    with pytest.raises(UserError, match="half-filled"):
        MilvusRanker(uri, SPARSE, lambda texts: queries)
    sent: list[int] = []
    build_milvus(uri, SPARSE, [documents], sent.append)
    assert sum(sent) == CHUNKS
    ranker = MilvusRanker(uri, SPARSE, lambda texts: queries)
    truth = (matrix(documents) @ matrix(queries).T).toarray()
    for i, ranking in enumerate(ranker.rank(["q"] * 4, CHUNKS)):
        check(ranking, truth[:, i], int((truth[:, i] > 0).sum()))


@pytest.mark.slow
def test_a_file_that_is_open_elsewhere(config: str) -> None:
    code = textwrap.dedent(f"""
        from ratchet.retrieval.backends.milvus import VectorSpace, drop_milvus
        from ratchet.core.errors import UserError
        try:
            drop_milvus({config!r}, VectorSpace("x", False, 2, 1))
        except UserError as error:
            print("refused:", error)
    """)
    done = run_code(code)
    assert "refused:" in done.stdout and "open in another process" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.server
def test_a_server_at_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Milvus Lite as a server of its own stands in for a cluster: the same client, by address and with a token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("RATCHET_MILVUS_TOKEN", "user:password")
    monkeypatch.setattr("ratchet.retrieval.backends.milvus.TIMEOUT", 3.0)
    command = ["server", "--data-dir", str(tmp_path), "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen([sys.executable, "-m", "milvus_lite", *command], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout and "listening" in server.stdout.readline()
        config = f"http://127.0.0.1:{port}"
        documents = dense_vectors(CHUNKS, 0)
        build_milvus(config, DENSE, [documents])
        ranker = MilvusRanker(config, DENSE, lambda texts: documents[:1])
        check(ranker.rank(["q"], 20)[0], documents.astype(np.float64) @ documents[0].astype(np.float64), 20)
    finally:
        server.terminate()
        server.communicate(timeout=20)
    with pytest.raises(UserError, match="Milvus failed in search"):
        ranker.rank(["q"], 20)
    with pytest.raises(UserError, match="no Milvus server answers"):
        build_milvus("http://127.0.0.1:1", DENSE, [])
