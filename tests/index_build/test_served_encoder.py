"""An index whose chunks and queries a server encodes: prompts, requests in flight, and what a failure costs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.core.config import IndexConfig, parse
from ratchet.core.errors import UserError
from ratchet.core.http.retry import Backoff
from ratchet.index_build import content
from ratchet.retrieval.encoders import served
from ratchet.retrieval.encoders.dense import ServedEncoder
from ratchet.retrieval.opening import open_index
from ratchet.retrieval.retriever import SearchError
from tests.helpers.building import build
from tests.helpers.fake_server import Reply, run_server
from tests.helpers.tiny_index import write_documents
from tests.helpers.web_upstream import Upstream

pytest.importorskip("faiss")
pytestmark = pytest.mark.server
DOCUMENTS = [{"id": f"d{number}", "text": "x" * (number + 1)} for number in range(10)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    monkeypatch.setattr(served, "BACKOFF", Backoff(tries=3, first=0.01, longest=0.02))
    monkeypatch.setattr(content, "CHUNKS_PER_PART", 4)
    monkeypatch.setattr(served, "BATCH", 2)
    with run_server(Upstream()) as state:
        yield state


def config(folder: Path, server: Upstream, model: str = "intfloat/e5-base-v2", **encoder: Any) -> IndexConfig:
    documents = write_documents(folder / "documents.jsonl", DOCUMENTS)
    return parse(
        IndexConfig,
        {
            "path": str(folder / "index"),
            "documents": [str(documents)],
            "kind": "dense",
            "encoder": {"path": model, "url": f"{server.url}/v1", **encoder},
        },
        "x.yaml",
    )


def inputs(server: Upstream) -> list[str]:
    return [text for request in server.requests for text in request.body["input"]]


def test_chunks_and_queries_are_sent_with_the_models_prompts(tmp_path: Path, server: Upstream) -> None:
    """The server's vectors are [length, 1], so that of unit vectors the nearest is that of the nearest length."""
    index = config(tmp_path, server)
    assert build(index) == 1
    texts = [f"passage: {'x' * (number + 1)}" for number in range(10)]
    assert sorted(set(inputs(server)) - set(texts), key=len) == ["query: dimension"]
    assert sorted(text for text in inputs(server) if text in texts) == sorted(texts)
    server.requests.clear()
    assert build(index) == 0 and set(inputs(server)) <= {"query: dimension"}
    server.requests.clear()
    # A query of 17 characters with its prompt, as long as the chunk of 8 with its own.
    found = open_index(index).search("y" * 10, 10)
    assert inputs(server) == ["query: yyyyyyyyyy"]
    assert found[0].document_id == "d7" and found[0].score == pytest.approx(1.0)
    lengths = np.array([[len(texts[int(p.document_id[1:])]), 1.0] for p in found])
    expected = lengths @ [17, 1] / np.linalg.norm(lengths, axis=1) / np.linalg.norm([17, 1])
    assert [passage.score for passage in found] == pytest.approx(expected.tolist(), abs=1e-6)


def test_inner_products_of_vectors_as_they_are(tmp_path: Path, server: Upstream) -> None:
    index = config(tmp_path, server, normalize=False, prompts={})
    build(index)
    found = open_index(index).search("yy", 10)
    assert [passage.document_id for passage in found] == [f"d{number}" for number in reversed(range(10))]
    assert [passage.score for passage in found] == [2.0 * (10 - rank) + 1 for rank in range(10)]


def test_a_build_that_lost_its_server_encodes_only_the_rest(tmp_path: Path, server: Upstream) -> None:
    index = config(tmp_path, server, prompts={})
    encode = ServedEncoder.encode_documents
    with pytest.MonkeyPatch.context() as patch:

        def fails_later(encoder: ServedEncoder, texts: Any) -> np.ndarray:
            if "xxxxx" in texts:
                server.faults.extend([Reply(503, "gone")] * 6)
            return encode(encoder, texts)

        patch.setattr(ServedEncoder, "encode_documents", fails_later)
        with pytest.raises(SearchError, match=r"answered 503: gone \(after 3 tries\)"):
            build(index)
    server.faults.clear()
    server.requests.clear()
    assert build(index) == 1
    assert sorted(inputs(server), key=len) == [*["x" * n for n in range(5, 9)], "dimension", "x" * 9, "x" * 10]
    assert len(open_index(index).search("yy", 20)) == 10


def test_the_address_may_change_and_the_model_may_not(tmp_path: Path, server: Upstream) -> None:
    build(config(tmp_path, server))
    with run_server(Upstream()) as other:
        assert open_index(config(tmp_path, other)).search("y", 1) and other.requests
        for changed in (config(tmp_path, other, "another"), config(tmp_path, other, prompts={"query": "q: "})):
            with pytest.raises(UserError, match="is not the encoder that this index was built with"):
                open_index(changed).search("y", 1)


@pytest.mark.parametrize(
    ("model", "prefixes"),
    [
        ("Qwen/Qwen3-Embedding-0.6B", ("Instruct: Given a web search query, retrieve relevant passages", "")),
        ("BAAI/bge-base-en-v1.5", ("Represent this sentence for searching relevant passages: ", "")),
        ("text-embedding-3-small", ("", "")),
    ],
)
def test_prompts_of_a_name(model: str, prefixes: tuple[str, str], tmp_path: Path, server: Upstream) -> None:
    encoder = config(tmp_path, server, model).encoder
    assert encoder is not None
    opened = ServedEncoder(encoder)
    assert opened.query_prefix.startswith(prefixes[0]) and bool(opened.query_prefix) == bool(prefixes[0])
    assert opened.document_prefix == prefixes[1]


@pytest.mark.parametrize("wrong", [{"max_length": 9}, {"revision": "main"}, {"url": "host:1"}])
def test_settings_of_a_local_model_are_refused(tmp_path: Path, server: Upstream, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"encoder: .*(a server has its own|is not an address)"):
        config(tmp_path, server, **wrong)
