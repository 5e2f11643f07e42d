"""A remote index over a real server: the same as the index itself, or a clear error."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from ratchet.core.config import IndexConfig
from ratchet.core.errors import UserError
from ratchet.retrieval.backends import remote
from ratchet.retrieval.backends.remote import RemoteIndex
from ratchet.retrieval.opening import open_index
from tests.helpers.served import QUICK, Broken, Held, Plain, serving

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[httpx.Client]]:
    """The clients that a test opens, which are closed at its end."""
    clients, real = list[httpx.Client](), remote.open_client

    def open_client(*given: Any, **settings: Any) -> httpx.Client:
        clients.append(real(*given, **settings))
        return clients[-1]

    monkeypatch.setattr(remote, "open_client", open_client)
    yield clients
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving({"plain": Plain(), "broken": Broken()}) as address:
        yield address


def test_a_remote_index_answers_as_the_index_itself(url: str) -> None:
    local, remote = Plain(), RemoteIndex(url, "plain")
    assert remote.digest == local.digest
    for k, offset in ((1, 0), (5, 3), (1000, 0), (0, 0), (7, 59)):
        for query in ("harbour", "", 'ä🙂 \n"quoted"'):
            assert remote.search(query, k, offset) == local.search(query, k, offset)
    assert len(remote.search("half \ud800 a pair", 2)) == 2
    with pytest.raises(ValueError, match="negative"):
        remote.search("a", -1)


def test_a_server_with_a_key_is_asked_with_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"only": Plain()}, key="swordfish") as url:
        monkeypatch.setenv("SEARCH_KEY", "swordfish")
        config = IndexConfig(url=url, key_env="SEARCH_KEY")
        assert open_index(config).search("harbour", 3) == Plain().search("harbour", 3)
        monkeypatch.setenv("SEARCH_KEY", "sword")
        with pytest.raises(UserError, match="401"):
            open_index(config)
        monkeypatch.delenv("SEARCH_KEY")
        with pytest.raises(UserError, match=r"index\.key_env: the environment variable SEARCH_KEY is not set"):
            open_index(config)


def test_opening_fails_in_words(url: str, opened: list[httpx.Client]) -> None:
    with pytest.raises(UserError, match=r"serves 2 indexes: name one of plain, broken"):
        RemoteIndex(url)
    with pytest.raises(UserError, match=r"no index 'wiki'.*broken, plain"):
        RemoteIndex(url, "wiki")
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(UserError, match=rf"no server answers at {nobody}.*ratchet index serve"):
        RemoteIndex(nobody, backoff=QUICK)
    with pytest.raises(UserError, match=r"404.*Not Found"):
        RemoteIndex(f"{url}/v1", "plain")
    with pytest.raises(UserError, match="not the answer of a search server"):
        RemoteIndex(f"{url}/health?", "plain")
    for address in ("127.0.0.1:8088", "ftp://x", "http://", "http://x:y"):
        with pytest.raises(UserError, match="is not an address"):
            RemoteIndex(address)
    assert len(opened) == 5 and all(client.is_closed for client in opened), "what is not opened keeps no connection"


def test_a_server_that_starts_again_is_waited_for() -> None:
    with serving({"only": Plain()}) as url:
        remote = RemoteIndex(url, backoff=QUICK)
        assert remote.search("a", 1)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(remote.search, "harbour", 4)
        time.sleep(0.3)
        assert not answer.done()
        with serving({"only": Plain()}, port=httpx.URL(url).port or 0):
            assert answer.result(300) == Plain().search("harbour", 4)


def test_another_index_behind_the_same_name_is_refused() -> None:
    with serving({"only": Plain("old")}) as url:
        remote = RemoteIndex(url, backoff=QUICK)
    with (
        serving({"only": Plain("new")}, port=httpx.URL(url).port or 0),
        pytest.raises(UserError, match=r"another index now \(digest new, it was old"),
    ):
        remote.search("a", 1)


def test_a_timeout_is_not_tried_again() -> None:
    held = Held()
    with serving({"held": held}) as url:
        with pytest.raises(UserError, match=r"no answer within 0\.2 s"):
            RemoteIndex(url, timeout=0.2).search("a", 1)
        held.go.set()
        assert held.begun == 1
