"""Bytes that are almost HTTP, sent to every server of ours."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx

from agents.external import app as gateway
from report.live import create_app as watch_app
from retrieval.protocol import Limits
from retrieval.serving.app import create_app as search_app
from retrieval.serving.mcp import create_server, guarded_app
from tests.campaign.trial import Attack, Trial
from tests.helpers.handmade_run import make_config
from tests.helpers.listening import listening
from tests.helpers.odd_answers import DEEP
from tests.helpers.served import Plain
from tests.helpers.served_systems import serving
from tests.helpers.watched import live_run

PATHS = {
    "search": "/indexes/plain/search",
    "mcp": "/mcp",
    "gateway": "/v1/chat/completions",
    "watch": "/details",
    "serve": "/v1/chat/completions",
}
BODIES = (
    b"",
    b"{}",
    b"null",
    b'{"query": "a", "k": -1}',
    b'{"query": "\\ud800", "k": 1}',
    b'{"model": 7, "messages": [{"role": "user"}]}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "none"}}',
    b"\xff\xfe",
    DEEP,
    b'{"k": ' + b"9" * 5000 + b"}",
)
LINES = (
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Content-Type: text/plain",
    b"Content-Type: application/json; charset=none",
    b"Host: evil.example",
    b"Host: [",
    b"Origin: http://[",
    b"Authorization: Bearer \xff",
    b"Expect: 100-continue",
    b"Upgrade: websocket\r\nConnection: Upgrade",
    b"no colon in this one",
    b"X: " + b"y" * 100_000,
)


@contextmanager
def servers(folder: Path) -> Iterator[Trial]:
    """All five servers run; a trial sends one request to one of them, whole or cut off."""
    with ExitStack() as stack:
        live = stack.enter_context(live_run(make_config(folder)))
        apps = {
            "search": search_app({"plain": Plain()}, Limits()),
            "mcp": guarded_app(create_server(Plain(), {}), None),
            "gateway": gateway.create_app(gateway.Gateway(""), lists=True),
            "watch": watch_app(live),
        }
        bases = {name: stack.enter_context(listening(app)) for name, app in apps.items()}
        bases["serve"] = stack.enter_context(serving(folder / "serve")).url

        def trial(dice: random.Random) -> None:
            name = dice.choice(sorted(bases))
            request = _request(dice, PATHS[name].encode())
            address = httpx.URL(bases[name])
            with socket.create_connection((address.host, address.port or 80), timeout=30) as connection:
                with suppress(OSError):  # of a server that has seen enough
                    connection.sendall(request)
                    connection.shutdown(socket.SHUT_WR)
                answer = _all_of(connection)
            assert b"Traceback" not in answer and b" 500 " not in answer.partition(b"\r\n")[0], answer[:300]
            assert httpx.get(bases[name] + "/nowhere", timeout=30).status_code in (401, 404)

        yield trial


def _request(dice: random.Random, path: bytes) -> bytes:
    body = dice.choice(BODIES)
    lines = [dice.choice([b"POST", b"GET", b"PUT", b"\x00"]) + b" " + dice.choice([path, b"/", b"/%00", b"//x"])]
    lines[0] += dice.choice([b" HTTP/1.1", b" HTTP/1.0", b" HTTP/9", b""])
    lines += [b"Host: 127.0.0.1", b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    lines[1:] = [line for line in lines[1:] if dice.random() < 0.9]
    lines += dice.sample(LINES, dice.randrange(3))
    whole = b"\r\n".join([*lines, b"", body])
    return whole if dice.random() < 0.8 else whole[: dice.randrange(len(whole))]


def _all_of(connection: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionResetError):  # of what the server did not read
        while len(received) < 1 << 20 and (part := connection.recv(65536)):
            received += part
    return received


ATTACKS = (
    Attack(
        "odd requests to search, MCP, gateway, watch and serve",
        "an answer below 500 or the end of the connection; the next request is answered",
        servers,
        20,
        3000,
    ),
)
