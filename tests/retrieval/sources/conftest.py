"""The search services of the tests: asked again at once, told whom they may write to, and closed at the end."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from ratchet.core.http.retry import Backoff
from ratchet.retrieval.sources import client
from ratchet.retrieval.sources.registry import SERVICES
from tests.helpers.fake_server import run_server
from tests.helpers.web_upstream import KEY, Upstream


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    for kind in SERVICES.values():
        if kind.key_env:
            monkeypatch.setenv(kind.key_env, f"{KEY}\n")
    with run_server(Upstream()) as state:
        yield state


@pytest.fixture(autouse=True)
async def _quick_and_closed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(client, "BACKOFF", Backoff(tries=5, first=0.01, longest=60.0))
    monkeypatch.setenv("RATCHET_CONTACT", "me@velm.example")
    opened: list[httpx.AsyncClient] = []
    real = client.open_async_client

    def open_client(**settings: Any) -> httpx.AsyncClient:
        opened.append(real(**settings))
        return opened[-1]

    monkeypatch.setattr(client, "open_async_client", open_client)
    yield
    for one in opened:
        with contextlib.suppress(RuntimeError):  # its loop has ended
            await one.aclose()
