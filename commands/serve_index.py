"""ratchet serve-index: indexes over HTTP, for agents that run elsewhere or share one copy of an index.

What it answers is told in `retrieval.serving.app`. Needs the extra `[server]`.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.config import load_config, parse
from ratchet.errors import UserError
from ratchet.http.server import address_of, listen, read_key, server_settings
from retrieval.protocol import Limits
from retrieval.sparse.engine import usable_cores

if TYPE_CHECKING:
    from retrieval.index import Retriever


def main(words: Sequence[str] | None = None, prog: str = "ratchet serve-index") -> None:
    """Serve the indexes that the command line names."""
    parser = argparse.ArgumentParser(prog=prog, description="Serve indexes over HTTP.")
    parser.add_argument("--config", help="serve the index of this experiment, by the name of its folder")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--index", action="append", default=[], metavar="NAME=FOLDER", help="an index (repeatable)")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine alone")
    parser.add_argument("--port", type=int, default=8088, help="default: 8088; 0: any free one")
    parser.add_argument("--key-file", metavar="FILE", help="the key that clients must send (or: RATCHET_API_KEY)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="default: one for each core")
    for name, field in Limits.model_fields.items():
        default = "none" if field.default is None else field.default
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"most {field.description} (default: {default})")
    arguments = parser.parse_args(words)
    given = {name: getattr(arguments, name) for name in Limits.model_fields if getattr(arguments, name) is not None}
    limits = parse(Limits, given, "limits")
    key = read_key(arguments.host, arguments.key_file)
    try:
        import uvicorn

        from retrieval.serving.app import create_app
    except ModuleNotFoundError as error:
        raise UserError(f"the search server needs {error.name}: pip install 'ratchet[server]'") from error
    if arguments.threads < 1:
        raise UserError("--threads must be at least 1")
    indexes = _open_indexes(arguments)
    with listen(arguments.host, arguments.port) as listener:
        _announce(listener, indexes)
        app = create_app(indexes, limits, arguments.threads, key)
        uvicorn.Server(server_settings(app, 30, keep_alive_seconds=30)).run([listener])


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


def _announce(listener: socket.socket, indexes: Mapping[str, Retriever]) -> None:
    names = ", ".join(f"{name} ({index.digest[:12]})" for name, index in indexes.items())
    print(f"serving {names} on {address_of(listener)}", file=sys.stderr, flush=True)
