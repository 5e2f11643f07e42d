"""A real HTTP server in a thread that answers as some service does, and fails when it is told to."""

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from tests.helpers.odd_answers import flood, send


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    params: dict[str, str]
    headers: "Message[str, str]"
    body: Any
    """JSON."""
    at: float


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: Any = ""
    """Text, bytes, or JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds before the first byte."""
    drip: float = 0.0
    """Seconds between single bytes of the body."""
    broken: bool = False
    """The connection is closed in the middle of the body."""
    drop: bool = False
    """The connection is closed without an answer."""
    wire: bytes | None = None
    """A whole answer, status line and headers included; the connection ends with it."""
    flood: int = 0
    """So many blanks follow, as long as they are read."""


class FakeServer(ThreadingHTTPServer):
    """`faults` are used up one a request, in order; everything that was asked is in `requests`."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.requests: list[Request] = []
        self.faults: list[Reply] = []
        self.connections: list[socket.socket] = []
        self.flooded = 0
        self.lock = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reply(self, request: Request) -> Reply:
        """A fault, or the service's answer."""
        with self.lock:
            if self.faults:
                return self.faults.pop(0)
        return self.answer(request)

    def answer(self, request: Request) -> Reply:
        raise NotImplementedError

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError | json.JSONDecodeError):  # of what `stop` cut off
            super().handle_error(request, client_address)

    def stop(self) -> None:
        """As a killed server does: nothing listens any more, and open connections break."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


Fake = TypeVar("Fake", bound=FakeServer)


@contextlib.contextmanager
def run_server(server: Fake) -> Iterator[Fake]:
    """The server while the block runs."""
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.stop()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def setup(self) -> None:
        super().setup()
        self.server.connections.append(self.connection)

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        params = {name: values[-1] for name, values in parse_qs(split.query).items()}
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.loads(raw) if raw else None
        request = Request(self.command, split.path, params, self.headers, body, time.monotonic())
        self.server.requests.append(request)
        reply = self.server.reply(request)
        time.sleep(reply.delay)
        with contextlib.suppress(OSError):  # a client that gave up
            self._send(reply)

    do_POST = do_GET

    def _send(self, reply: Reply) -> None:
        if reply.drop or reply.wire is not None or reply.flood:
            self.close_connection = True
            send(self.connection, reply.wire or b"")
            self.server.flooded += flood(self.connection, reply.flood)
            return
        is_json = not isinstance(reply.body, str | bytes)
        text = json.dumps(reply.body) if is_json else reply.body
        data = text.encode() if isinstance(text, str) else text
        self.send_response(reply.status)
        kind = {"content-type": "application/json"} if is_json else {}
        for name, value in {**kind, "content-length": str(len(data)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if reply.broken:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        elif reply.drip:
            for byte in data:
                self.wfile.write(bytes([byte]))
                time.sleep(reply.drip)
        else:
            self.wfile.write(data)
