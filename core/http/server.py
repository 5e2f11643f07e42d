"""The common part of our HTTP servers: the socket, the key that clients must send, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.core.errors import UserError
from ratchet.core.files import read_small_text

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

KEY_VARIABLE = "RATCHET_API_KEY"
MAX_KEY_BYTES = 4096
KEEP_ALIVE_SECONDS = 30
"""Seconds that a connection may be idle between two requests."""


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises UserError."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: a port is a number from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
        # Connections inherit it. asyncio sets it only on sockets of its own making, and without it every answer waits
        # 40 ms for the client's acknowledgement of its headers.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} of {host} is in use; stop what uses it, or choose another --port") from error
        raise UserError(f"cannot listen on --host {host} --port {port} ({error.strerror or error})") from error


def address_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket, without a slash at its end."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_key(host: str, file: str | None) -> str | None:
    """Read the key that clients must send, from a file or else the environment; None where there is neither.

    Raises UserError where there is none and others than this machine can reach `host`, or where it cannot be sent.
    """
    key, where = os.environ.get(KEY_VARIABLE), KEY_VARIABLE
    if file is not None:
        where = f"--key-file {file}"
        key = read_small_text(Path(file), MAX_KEY_BYTES, where).strip()
    if key is None:
        if is_loopback(host):
            return None
        raise UserError(
            f"--host {host}: others can reach this address, so the server needs a key that its clients send: put one "
            f"into a file and name it with --key-file, or set {KEY_VARIABLE}; "
            "`python -c 'import secrets; print(secrets.token_urlsafe())'` makes one"
        )
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(f"{where}: a key is one line of ASCII characters without blanks")
    return key


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def server_settings(app: ASGIApp, drain_seconds: int) -> uvicorn.Config:
    """Configure uvicorn for an app of ours, without its own logging. At the end what runs has `drain_seconds` to
    end."""
    import uvicorn

    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    return uvicorn.Config(
        app,
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=drain_seconds,
    )


async def serve_until_stopped(app: ASGIApp, listener: socket.socket, drain_seconds: int, line: str) -> None:
    """Print the line that says where, and serve until SIGTERM or Ctrl-C; what runs then may end."""
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # which uvicorn raises again after its own orderly end
        signal.signal(number, lambda number, _: stopped.append(number))
    await asyncio.sleep(0)  # cancelled here, and not inside uvicorn, by a signal that came before these lines
    print(line, file=sys.stderr, flush=True)
    import uvicorn

    server = uvicorn.Server(server_settings(app, drain_seconds))
    server.should_exit = bool(stopped)
    await server.serve([listener])


@contextlib.asynccontextmanager
async def serve_beside(app: ASGIApp, listener: socket.socket, drain_seconds: int) -> AsyncIterator[None]:
    """Serve while the block runs, beside other work of this process, which keeps its signals."""
    import uvicorn

    server = uvicorn.Server(server_settings(app, drain_seconds))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    task = asyncio.ensure_future(server.serve([listener]))
    try:
        yield
    finally:
        server.should_exit = True
        await task
