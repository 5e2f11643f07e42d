"""Small indexes in memory, and real servers over them."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from ratchet.core.errors import UserError
from ratchet.core.http.environment import certificates
from ratchet.core.http.retry import Backoff
from ratchet.core.records import Passage
from ratchet.retrieval.serving import Limits
from ratchet.retrieval.serving.app import create_app
from tests.helpers.listening import listening

TEXTS = {f"d{i}": f"harbour {'ä' * (i % 7)} number {i} of Velm 🙂" for i in range(60)}
QUICK = Backoff(tries=30, first=0.02, longest=0.2)


class Plain:
    """Ranks texts by the characters they share with the query."""

    def __init__(self, digest: str = "plain", texts: Mapping[str, str] = TEXTS) -> None:
        self.digest, self._texts = digest, texts

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        found = [
            Passage(id=f"{name}:0", document_id=name, text=text, score=len({*query} & {*text}) / 7 + 1e-17)
            for name, text in self._texts.items()
        ]
        return sorted(found, key=lambda passage: -passage.score)[offset : offset + k]


class Counted(Plain):
    def __len__(self) -> int:
        return len(self._texts)


class Held(Plain):
    """Searches wait until they are let go; counts how many began, and how many run at once."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.begun = self.running = self.most = 0
        self._lock = threading.Lock()

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        with self._lock:
            self.begun += 1
            self.running += 1
            self.most = max(self.most, self.running)
        assert self.go.wait(300)
        with self._lock:
            self.running -= 1
        return super().search(query, k, offset)


class Broken(Plain):
    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        if query == "user":
            raise UserError("shard 3 is damaged; build it anew")
        raise RuntimeError("secret details")


@contextlib.contextmanager
def serving(
    indexes: Mapping[str, Any], threads: int = 2, port: int = 0, key: str | None = None, **limits: Any
) -> Iterator[str]:
    """The address of a real server in a thread."""
    with listening(create_app(indexes, Limits(**limits), threads, key), port) as url:
        yield url


def post(url: str, index: str = "plain", call: str = "search", **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/indexes/{index}/{call}", json=body, timeout=300, verify=certificates())


def refusal(response: httpx.Response) -> tuple[int, str]:
    assert [*response.json()] == ["error"]
    return response.status_code, response.json()["error"]
