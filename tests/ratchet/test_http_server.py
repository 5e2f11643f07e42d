"""What every HTTP server of ours refuses before its app sees anything: slow clients, odd framing, other machines."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agents.external import app as gateway
from ratchet.http import guard, timed_protocol
from report.live import create_app as watch_app
from retrieval.protocol import Limits
from retrieval.serving.app import create_app as search_app
from retrieval.serving.mcp import create_server, guarded_app
from tests.helpers.handmade_run import make_config
from tests.helpers.listening import listening
from tests.helpers.served import Plain
from tests.helpers.served_systems import serving as serving_systems
from tests.helpers.watched import live_run

pytestmark = pytest.mark.server
KEY = "open-sesame"
HEAD = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture(params=["search", "mcp", "gateway", "watch", "serve"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of something that each server has, without a key."""
    if request.param == "serve":
        with serving_systems(tmp_path) as served:
            yield f"{served.url}/v1/chat/completions"
    elif request.param == "watch":
        with live_run(make_config(tmp_path)) as live, listening(watch_app(live)) as base:
            yield f"{base}/"
    else:
        apps: dict[str, tuple[Callable[[], Any], str]] = {
            "search": (lambda: search_app({"plain": Plain()}, Limits()), "/indexes/plain/search"),
            "mcp": (lambda: guarded_app(create_server(Plain(), {}), None), "/mcp"),
            "gateway": (lambda: gateway.create_app(gateway.Gateway(""), lists=True), "/trajectories"),
        }
        make, path = apps[request.param]
        with listening(make()) as base:
            yield base + path


def opened(url: str) -> socket.socket:
    address = httpx.URL(url)
    return socket.create_connection((address.host, address.port or 80), timeout=60)


def all_of(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def test_two_lengths_of_one_body_get_one_refusal_and_the_end(url: str) -> None:
    """The second request, which one of the two lengths hides in the body of the first, is never answered."""
    hidden = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    lengths = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (5 + len(hidden))
    with opened(url) as connection:
        connection.sendall(b"POST " + httpx.URL(url).raw_path + b" HTTP/1.1\r\n" + HEAD + lengths + hidden)
        answer = all_of(connection)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"Content-Length and Transfer-Encoding" in answer
    assert answer.count(b"HTTP/1.1") == 1


def test_a_name_that_is_not_this_machines_is_refused(url: str) -> None:
    for header in ({"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}):
        refused = httpx.post(url, json={}, headers=header)
        assert refused.status_code == 403 and "is not this machine" in refused.text


def test_slow_headers_end_the_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_protocol, "CLIENT_SECONDS", 0.3)
    for start in (b"", b"GET /health HT"):
        with opened(url) as connection:
            connection.sendall(start)
            for _ in range(2):  # a byte now and then does not help
                time.sleep(0.05)
                connection.sendall(start[:1])
            assert all_of(connection) == b""
    with opened(url) as connection:  # the second request of a connection
        connection.sendall(b"GET /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        answer.read()
        connection.sendall(b"GET /nowhere HTTP/1.1\r\n")
        assert all_of(connection) == b""


def test_a_slow_body_is_refused_and_ends_the_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(timed_protocol, "CLIENT_SECONDS", 0.3)
    accept = b"Accept: application/json, text/event-stream\r\n"
    with opened(url) as connection:
        request = b"POST " + httpx.URL(url).raw_path + b" HTTP/1.1\r\n" + HEAD + accept
        connection.sendall(request + b"Content-Length: 100\r\n\r\n{")
        answer = all_of(connection)
    # Of the other servers nothing reads a body there: they refuse it, and the connection ends as well.
    assert answer.split()[1] in (b"408", b"404", b"405", b"413"), answer
    assert b"Traceback" not in answer


def test_an_answered_request_may_not_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed_protocol, "CLIENT_SECONDS", 0.3)
    with listening(search_app({"plain": Plain()}, Limits())) as base, opened(base) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 100\r\n\r\n")
        assert all_of(connection).startswith(b"HTTP/1.1 403 ")


def test_a_key_is_wanted_by_the_search_server_and_by_mcp() -> None:
    for app, path in (
        (search_app({"plain": Plain()}, Limits(), key=KEY), "/indexes"),
        (guarded_app(create_server(Plain(), {}), KEY), "/mcp"),
    ):
        with listening(app) as base:
            assert httpx.get(base + path).status_code == 401
            assert httpx.get(base + path, headers={"authorization": "Bearer open-sesamf"}).status_code == 401
            elsewhere = {"authorization": f"Bearer {KEY}", "host": "lab.example"}
            assert httpx.get(base + path, headers=elsewhere).status_code != 401


async def _endless(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await asyncio.sleep(1000)


def test_a_request_that_outlasts_the_server_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with listening(_endless) as base, opened(base) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(100)
    assert [record for record in caplog.records if record.exc_info] == []
    assert "running task" in caplog.text, "it was cancelled, and a line says so"
