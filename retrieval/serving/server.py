"""python -m retrieval.serving.server: indexes over HTTP, for agents that run elsewhere or share one copy of an index.

What it answers is told in `retrieval.serving.app`. Needs the extra `[server]`.
"""

from __future__ import annotations

import argparse
import errno
import ipaddress
import logging
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.command import run_command
from ratchet.config import load_config, parse
from ratchet.errors import UserError
from retrieval.serving.protocol import Limits
from retrieval.sparse.engine import usable_cores

if TYPE_CHECKING:
    from retrieval.index import Retriever

logger = logging.getLogger(__name__)


def main(words: Sequence[str] | None = None, prog: str = "python -m retrieval.serving.server") -> None:
    """Serve the indexes that the command line names."""
    parser = argparse.ArgumentParser(prog=prog, description="Serve indexes over HTTP.")
    parser.add_argument("--config", help="serve the index of this experiment, by the name of its folder")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--index", action="append", default=[], metavar="NAME=FOLDER", help="an index (repeatable)")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine alone")
    parser.add_argument("--port", type=int, default=8088, help="default: 8088; 0: any free one")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="default: one for each core")
    for name, field in Limits.model_fields.items():
        default = "none" if field.default is None else field.default
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"most {field.description} (default: {default})")
    arguments = parser.parse_args(words)
    given = {name: getattr(arguments, name) for name in Limits.model_fields if getattr(arguments, name) is not None}
    limits = parse(Limits, given, "limits")
    try:
        import uvicorn

        from retrieval.serving.app import create_app
    except ModuleNotFoundError as error:
        raise UserError(f"the search server needs {error.name}: pip install 'ratchet[server]'") from error
    if arguments.threads < 1:
        raise UserError("--threads must be at least 1")
    indexes = _open_indexes(arguments)
    with listen(arguments.host, arguments.port) as listener:
        if not _is_loopback(arguments.host):
            logger.warning("%s: the server has no authentication; all who reach it can search", arguments.host)
        _announce(listener, indexes)
        app = create_app(indexes, limits, arguments.threads)
        # Without its own logging: lines go where ours go, and no line is written for every request.
        settings = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=30,
        )
        uvicorn.Server(settings).run([listener])


def _open_indexes(arguments: argparse.Namespace) -> dict[str, Retriever]:
    from retrieval.loader import open_folder, open_index

    if bool(arguments.config) == bool(arguments.index):
        raise UserError("say what to serve: either --config X.yaml or --index NAME=FOLDER (repeatable)")
    if arguments.config:
        config = load_config(arguments.config, arguments.overrides)
        return {Path(config.index.path).name or config.index.kind: open_index(config.index)}
    indexes: dict[str, Retriever] = {}
    for given in arguments.index:
        name, _, folder = given.partition("=")
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII) or not folder:
            raise UserError(f"--index {given}: expected NAME=FOLDER, the name of letters, digits, '_', '.' and '-'")
        if name in indexes:
            raise UserError(f"--index {given}: there is already an index {name!r}; give every index its own name")
        indexes[name] = open_folder(Path(folder))
    return indexes


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; what stands against it is a UserError."""
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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _announce(listener: socket.socket, indexes: Mapping[str, Retriever]) -> None:
    host, port = listener.getsockname()[:2]
    names = ", ".join(f"{name} ({index.digest[:12]})" for name, index in indexes.items())
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    print(f"serving {names} on http://{where}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_command(main)
