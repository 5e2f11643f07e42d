"""The search server over real sockets."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from ratchet.core.errors import UserError
from ratchet.retrieval.backends.remote import RemoteIndex
from tests.helpers.served import QUICK, Broken, Counted, Held, Plain, post, refusal, serving
from tests.helpers.waiting import wait_for

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving({"plain": Plain(), "counted": Counted("c"), "broken": Broken()}) as address:
        yield address


@pytest.mark.parametrize(
    ("index", "call", "body", "status", "words"),
    [
        ("plane", "search", {"query": "a", "k": 1}, 404, "did you mean 'plain'"),
        ("plain", "serch", {"query": "a", "k": 1}, 404, "Not Found"),
        ("plain", "search", {"query": "a"}, 422, "k: Field required"),
        ("plain", "search", {"query": "a", "k": -1}, 422, "k: "),
        ("plain", "search", {"query": "a", "k": 1, "offset": -1}, 422, "offset: "),
        ("plain", "search", {"query": "a", "k": "1"}, 422, "k: Input should be a valid integer"),
        ("plain", "search", {"query": "a", "k": 1, "top": 2}, 422, "unknown key 'top' (known: "),
        ("plain", "search", {"query": ["a"], "k": 1}, 422, "query: "),
        ("plain", "search", {"query": "a", "k": 900, "offset": 101}, 422, "k + offset is 1001, the limit is 1000"),
        ("plain", "search", {"query": "a" * 131_073, "k": 1}, 422, "131073 characters, the limit is 131072"),
        ("broken", "search", {"query": "user", "k": 1}, 500, "shard 3 is damaged; build it anew"),
        ("broken", "search", {"query": "a", "k": 1}, 500, "the server failed; its log says why"),
    ],
)
def test_refuses_in_words(url: str, index: str, call: str, body: dict[str, Any], status: int, words: str) -> None:
    found, error = refusal(post(url, index, call, **body))
    assert found == status and words in error


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b'{"query": "\\ud800", "k": 1}', b'{"query": "\xff"}'])
def test_a_body_that_is_no_request_is_refused(url: str, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    status, _ = refusal(httpx.post(f"{url}/indexes/plain/search", content=content, headers=headers))
    assert status in (400, 422)


def test_more_requests_than_places_are_sent_away_and_come_again() -> None:
    held = Held()
    with serving({"held": held}, threads=1, concurrent=2) as url, ThreadPoolExecutor(2) as clients:
        remote = RemoteIndex(url, backoff=QUICK)
        # They come again where the request that asks whether all places are taken has taken the last.
        inside = [
            clients.submit(wait_for, lambda: post(url, "held", query="a", k=1).status_code == 200) for _ in range(2)
        ]
        wait_for(lambda: post(url, "nowhere", query="a", k=1).status_code == 503)
        response = post(url, "held", query="a", k=1)
        assert response.headers["Retry-After"] == "1"
        status, error = refusal(response)
        assert status == 503 and "--concurrent" in error
        threading.Timer(0.1, held.go.set).start()
        assert remote.search("x", 2) == Plain().search("x", 2)
        assert all(future.result() for future in inside)


def test_searches_run_on_so_many_threads_and_never_on_the_loop() -> None:
    held = Held()
    with serving({"held": held}, threads=2) as url, ThreadPoolExecutor(6) as clients:
        futures = [clients.submit(post, url, "held", query="a", k=1) for _ in range(6)]
        wait_for(lambda: held.running == 2)
        assert httpx.get(f"{url}/health").status_code == 200
        held.go.set()
        assert [future.result().status_code for future in futures] == [200] * 6
        assert held.most == 2


def test_seconds_of_a_request() -> None:
    held = Held()
    with serving({"held": held}, threads=1, seconds=0.1) as url:
        status, error = refusal(post(url, "held", query="a", k=1))
        assert status == 504 and "0.1 s" in error
        with pytest.raises(UserError, match=r"504.*0\.1 s"):
            RemoteIndex(url).search("a", 1)
        held.go.set()
        wait_for(lambda: post(url, "held", query="a", k=1).status_code == 200)
