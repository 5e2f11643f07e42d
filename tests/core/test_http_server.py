"""What every HTTP server of ours refuses before its app sees anything: odd framing, other machines."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.agents.external import app as gateway
from ratchet.retrieval.serving import Limits
from ratchet.retrieval.serving.app import create_app as search_app
from ratchet.retrieval.serving.mcp import create_server, guarded_app
from tests.helpers.listening import listening
from tests.helpers.served import Plain
from tests.helpers.served_systems import serving as serving_systems

pytestmark = pytest.mark.server
KEY = "open-sesame"
ELSEWHERE = [
    [("host", "evil.example")],
    [("host", "127.0.0.1.evil.example")],
    [("host", "127.0.0.1@evil.example")],
    [("origin", "http://evil.example")],
    [("origin", "http://evil.example."), ("origin", "http://127.0.0.1")],
    [("origin", "http://127.0.0.1"), ("origin", "http://evil.example")],
    [("origin", "http://127.0.0.1, http://evil.example")],
    [("origin", "http://127.0.0.1/ http://evil.example")],
    [("origin", "HTTP://EVIL.EXAMPLE:8090")],
    [("origin", "http://127.0.0.1:80@evil.example")],
    [("origin", "http://evil.example#@127.0.0.1")],
    [("origin", "null")],
    [("origin", "NULL")],
    [("origin", "")],
]
"""Headers of requests that name another machine."""
HEAD = b"Host: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture(params=["search", "mcp", "gateway", "programs", "serve"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of something that each server has, without a key."""
    if request.param == "serve":
        with serving_systems(tmp_path) as served:
            yield f"{served.url}/v1/chat/completions"
    else:
        apps: dict[str, tuple[Callable[[], Any], str]] = {
            "search": (lambda: search_app({"plain": Plain()}, Limits()), "/indexes/plain/search"),
            "mcp": (lambda: guarded_app(create_server(Plain(), {}), None), "/mcp"),
            "gateway": (lambda: gateway.create_app(gateway.Gateway("", lists=True)), "/trajectories"),
            "programs": (lambda: gateway.create_app(gateway.Gateway("", lists=True)), "/t/q1:0/v1/chat/completions"),
        }
        make, path = apps[request.param]
        with listening(make()) as base:
            yield base + path


@pytest.fixture
def search() -> Iterator[str]:
    with listening(search_app({"plain": Plain()}, Limits())) as base:
        yield base


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
    with httpx.Client() as client:
        for headers in ELSEWHERE:
            for method in ("GET", "POST"):
                refused = client.request(method, url, headers=headers)
                assert refused.status_code == 403 and "is not this machine" in refused.text


def test_the_names_of_this_machine_are_served(search: str) -> None:
    with httpx.Client() as client:
        for origin in ("http://127.0.0.1", "http://127.0.0.1:1", "HTTP://LOCALHOST:65535", "https://[::1]:8090"):
            assert client.get(f"{search}/indexes", headers={"origin": origin}).status_code == 200
            assert client.get(f"{search}/indexes", headers={"host": origin.partition("//")[2]}).status_code == 200


def test_head_is_answered_wherever_get_is(url: str) -> None:
    """With the same headers, and without a body: the connection goes on with the next request."""
    with httpx.Client() as client:
        for path in (httpx.URL(url).path, "/health", "/openapi.json", "/v1/models", "/indexes", "/"):
            address = httpx.URL(url).copy_with(path=path)
            head, get = client.head(address), client.get(address)
            assert (head.status_code, head.content) == (get.status_code, b"")
            for name in ("content-type", "content-length", "allow"):
                assert head.headers.get(name) == get.headers.get(name)


def test_a_websocket_is_refused(url: str) -> None:
    upgrade = {"connection": "Upgrade", "upgrade": "WebSocket", "sec-websocket-version": "13"}
    refused = httpx.get(url, headers={**upgrade, "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="})
    assert refused.status_code == 400 and "WebSockets" in refused.text


def test_a_key_is_wanted_by_the_search_server_and_by_mcp() -> None:
    for app, path in (
        (search_app({"plain": Plain()}, Limits(), key=KEY), "/indexes"),
        (guarded_app(create_server(Plain(), {}), KEY), "/mcp"),
    ):
        with listening(app) as base:
            assert httpx.get(base + path).status_code == 401
            for wrong in ("Bearer open-sesamf", f"Basic {KEY}", KEY, f"Bearer{KEY}", "Bearer"):
                assert httpx.get(base + path, headers={"authorization": wrong}).status_code == 401
            elsewhere = {"authorization": f"Bearer {KEY}", "host": "lab.example"}
            assert httpx.get(base + path, headers=elsewhere).status_code != 401


STOPPED_WHILE_IT_STARTS = """
import asyncio, os, signal
from ratchet.commands.main import run_command
from ratchet.core.http.app import open_app
from ratchet.core.http.server import listen, serve_until_stopped

async def serve():
    os.kill(os.getpid(), signal.SIGTERM)  # as while a model is loaded
    await serve_until_stopped(open_app("stopped"), listen("127.0.0.1", 0), 1, "serving")

run_command(lambda: asyncio.run(serve()))
"""


def test_a_server_that_is_stopped_while_it_starts_says_so_in_one_word() -> None:
    """No traceback, and no advice to run the command again: a server has nothing to resume."""
    ended = subprocess.run([sys.executable, "-c", STOPPED_WHILE_IT_STARTS], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (143, "\nstopped\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_in_order_from_the_line_on_that_it_prints(number: int) -> None:
    words = [sys.executable, "-c", STOPPED_WHILE_IT_STARTS.replace("    os.kill", "    # os.kill")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None and server.stderr.readline() == "serving\n"
        server.send_signal(number)
        assert (server.stderr.read(), server.wait(300)) == ("", 0)


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
