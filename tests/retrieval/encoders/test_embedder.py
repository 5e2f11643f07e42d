"""The embedder over an OpenAI-compatible API: a real server on loopback, its vectors, and its faults."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.agents.core.resources import open_resources
from ratchet.agents.core.system import load_system
from ratchet.core.config import DEFAULT_EMBEDDER, Config, EmbedderConfig, SystemConfig
from ratchet.core.errors import UserError
from ratchet.core.http.retry import Backoff
from ratchet.questions.manifest import check_same, open_run
from ratchet.retrieval.encoders import served
from ratchet.retrieval.encoders.dense import open_embedder
from ratchet.retrieval.retriever import SourceError
from tests.helpers.fake_server import Reply, run_server
from tests.helpers.served import Plain
from tests.helpers.web_upstream import Upstream

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "BACKOFF", Backoff(tries=3, first=0.01, longest=0.02))


@pytest.fixture
def server() -> Iterator[Upstream]:
    with run_server(Upstream()) as state:
        yield state


def config(server: Upstream, **more: Any) -> EmbedderConfig:
    return EmbedderConfig(path="text-embedding-3-small", url=f"{server.url}/v1", **more)


def test_vectors_come_in_the_order_of_the_texts_and_have_length_one(
    server: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_API_KEY", "key-of-the-tests")
    monkeypatch.setattr(served, "BATCH", 2)
    embed = open_embedder(config(server))
    vectors = embed(["a", "abc", ""])
    assert vectors.dtype == np.float32 and vectors.shape == (3, 2)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert np.allclose(vectors[:, 0] / vectors[:, 1], [1, 3, 1])
    first = max(server.requests, key=lambda request: len(request.body["input"]))  # both are in flight at once
    assert first.headers["authorization"] == "Bearer key-of-the-tests"
    assert first.body == {"model": "text-embedding-3-small", "input": ["a", "abc"], "encoding_format": "float"}
    assert embed([]).shape[0] == 0 and len(server.requests) == 2


def test_what_is_transient_is_asked_again_and_what_stays_is_the_trajectorys_fault(server: Upstream) -> None:
    embed = open_embedder(config(server))
    for busy in ([Reply(503, "busy"), Reply(429, "slow down")], [Reply(202), Reply(body="<html>Bad gateway</html>")]):
        server.requests.clear()
        server.faults.extend(busy)
        assert embed(["abc"]).shape == (1, 2) and len(server.requests) == 3
    server.faults.extend([Reply(500, "broken")] * 3)
    with pytest.raises(SourceError, match=r"answered 500: .*broken.* \(after 3 tries\)"):
        embed(["abc"])


@pytest.mark.parametrize(
    ("status", "answer", "error", "words"),
    [
        (404, {"error": "no such model"}, SourceError, "embedder.path"),
        (401, "no", UserError, "RATCHET_API_KEY"),
        (200, {"data": []}, SourceError, "expected 1 embeddings under data"),
        (200, {"data": [{"index": 4, "embedding": [1.0]}]}, SourceError, "indices"),
        (200, {"data": [{"index": 0, "embedding": "AAAA"}]}, SourceError, "list of numbers|empty"),
        (200, [], SourceError, "did not answer with vectors"),
    ],
)
def test_an_answer_that_cannot_be_used_is_named(
    server: Upstream, status: int, answer: Any, error: type[Exception], words: str
) -> None:
    server.faults.append(Reply(status, json.dumps(answer)))
    with pytest.raises(error, match=words):
        open_embedder(config(server))(["abc"])


def whole(folder: Path, **settings: Any) -> Config:
    split = {"path": str(folder / "questions.jsonl")}
    questions = dict.fromkeys(("train", "dev", "test"), split)
    given = {"run": str(folder / "run"), "questions": questions, "embedder": {"path": "m", **settings}}
    return Config.model_validate(given)


def test_thresholds_are_part_of_the_keys_and_addresses_are_not(tmp_path: Path) -> None:
    def digest(**settings: Any) -> str:
        return open_resources(whole(tmp_path, **settings), Plain()).digest

    assert digest() == digest(device="cpu") == "", "the keys of earlier runs"
    one = {"url": "http://127.0.0.1:1/v1"}
    others = [digest(**one), digest(thresholds={"relevance": 0.6}), digest(**one, thresholds={"relevance": 0.6})]
    assert len({"", *others}) == 4
    assert digest(url="http://127.0.0.1:2/v1") == others[0]


def test_another_embedder_is_part_of_the_keys_of_systems_that_may_embed(tmp_path: Path) -> None:
    def key(embeds: bool, **settings: Any) -> str:
        return open_resources(whole(tmp_path, **settings), Plain()).part_of_keys("index", embeds)

    usual: dict[str, Any] = {"path": str(DEFAULT_EMBEDDER.path)}
    keys = [key(False), key(True, **usual), key(True, **usual, device="cpu")]
    assert keys == ["index"] * 3, "the keys of earlier runs"
    assert len({"index", key(True), key(True, path="other"), key(True, max_length=64)}) == 4
    one = {"url": "http://127.0.0.1:1/v1"}
    assert key(True, **one) == key(False, **one) != "index"
    may = {name: load_system(SystemConfig(name=name)).spec.embeds for name in ("external", "fire", "tool_mad", "mrag")}
    assert may == {"external": True, "fire": True, "tool_mad": True, "mrag": False}


def test_a_run_folder_moves_to_another_server_but_not_to_other_thresholds(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('{"id": "q", "text": "Who?", "answers": ["Ada"]}\n')
    first = whole(tmp_path, url="http://127.0.0.1:1/v1")
    run = open_run(first)
    (run.round(1).trajectories).mkdir(parents=True)
    (run.round(1).trajectories / "part-0.jsonl").write_text("{}\n")
    check_same(whole(tmp_path, url="http://127.0.0.1:2/v1"))
    with pytest.raises(UserError, match=r"embedder\.thresholds"):
        check_same(whole(tmp_path, url="http://127.0.0.1:1/v1", thresholds={"relevance": 0.6}))
