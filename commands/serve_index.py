"""ratchet serve-index: indexes over HTTP, for agents that run elsewhere or share one copy of an index.

What it answers is told in `retrieval.serving.app`. Needs the extra `[server]`.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.commands.arguments import PORTS, add_server_arguments, limits_of
from ratchet.core.errors import UserError, fault_in
from ratchet.core.extras import need_extra
from ratchet.core.http.server import address_of, listen, read_key, serve_until_stopped
from ratchet.core.processor import usable_cores
from ratchet.retrieval.backends.remote import Limits

if TYPE_CHECKING:
    from ratchet.retrieval.retriever import Retriever

NAME = re.compile(r"[\w.-]+", re.ASCII)


def main(words: Sequence[str] | None = None, prog: str = "ratchet serve-index") -> None:
    """Serve the indexes that the command line names."""
    parser = argparse.ArgumentParser(prog=prog, description="Serve indexes over HTTP.")
    parser.add_argument("--config", help="serve the index of this experiment, by the name of its folder")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--index", action="append", default=[], metavar="NAME=FOLDER", help="an index (repeatable)")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="default: one for each core")
    add_server_arguments(parser, PORTS["serve-index"], Limits)
    arguments = parser.parse_args(words)
    limits = limits_of(arguments, Limits)
    need_extra("server", "ratchet serve-index")
    key = read_key(arguments.host, arguments.key_file)
    from ratchet.retrieval.serving.app import create_app

    if arguments.threads < 1:
        raise UserError("--threads must be at least 1")
    indexes = _open_indexes(arguments)
    with listen(arguments.host, arguments.port) as listener:
        app = create_app(indexes, limits, arguments.threads, key)
        names = ", ".join(f"{name} ({index.digest[:12]})" for name, index in indexes.items())
        line = f"serving {names} on {address_of(listener)}"
        asyncio.run(serve_until_stopped(app, listener, drain_seconds=30, line=line))


def _open_indexes(arguments: argparse.Namespace) -> dict[str, Retriever]:
    from ratchet.commands.config import open_config  # late: --help needs no plug-in
    from ratchet.retrieval.loader import open_folder, open_index

    if bool(arguments.config) == bool(arguments.index):
        raise UserError("say what to serve: either --config X.yaml or --index NAME=FOLDER (repeatable)")
    if arguments.config:
        config = open_config(arguments.config, arguments.overrides)
        return {Path(config.index.path).name or config.index.kind: open_index(config.index)}
    indexes: dict[str, Retriever] = {}
    for given in arguments.index:
        name, _, folder = given.partition("=")
        if not folder:
            raise UserError(f"--index {given}: expected NAME=FOLDER")
        if not NAME.fullmatch(name):
            fault = fault_in(name, NAME.fullmatch)
            raise UserError(f"--index {given}: {fault}; expected NAME of letters, digits, '_', '.' and '-'")
        if name in indexes:
            raise UserError(f"--index {given}: there is already an index {name!r}; give every index its own name")
        indexes[name] = open_folder(Path(folder))
    return indexes
