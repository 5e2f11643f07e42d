"""The servers: a config's systems (an OpenAI-compatible endpoint and a page at /), indexes for agents that run
elsewhere or share one copy of an index, and an index with sources for MCP clients.

They listen on this machine alone unless --host says otherwise. Packages of extras are imported when they are needed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ratchet.retrieval.serving as index_server
from ratchet.commands.arguments import limits_of
from ratchet.commands.ask import open_runner
from ratchet.commands.config import open_config
from ratchet.core.config import Config
from ratchet.core.errors import UserError, fault_in
from ratchet.core.http.server import address_of, listen, read_key, serve_until_stopped
from ratchet.core.installed import need_extra
from ratchet.core.processor import usable_cores
from ratchet.core.runfolder import RunFolder
from ratchet.inference.adapters import read_uniform_adapter
from ratchet.retrieval.loader import open_folder
from ratchet.retrieval.opening import open_index
from ratchet.retrieval.retriever import Retriever
from ratchet.retrieval.sources.registry import open_sources
from ratchet.retrieval.sources.source import Source
from ratchet.rounds.records import best_round
from ratchet.serve import Limits

if TYPE_CHECKING:
    from ratchet.retrieval.serving.mcp import Server
    from ratchet.serve.answering import Answerer

NO_ADAPTER = "none"
NAME = re.compile(r"[\w.-]+", re.ASCII)


def serve(config: Config, options: argparse.Namespace) -> None:
    """Serve the systems until SIGTERM or Ctrl-C; what is being answered then is finished first."""
    limits = limits_of(options, Limits)
    need_extra("server", "ratchet serve")
    key = read_key(options.host, options.key_file)
    asyncio.run(_serve_systems(config, options, limits, key))


async def _serve_systems(config: Config, options: argparse.Namespace, limits: Limits, key: str | None) -> None:
    from ratchet.serve.app import create_app

    with listen(options.host, options.port) as listener:
        async with contextlib.AsyncExitStack() as stack:
            answerer = _open_systems(config, options, limits, stack)
            line = f"serving {', '.join(answerer.models)} on {address_of(listener)}"
            await serve_until_stopped(create_app(answerer, key), listener, options.drain, line)


def _open_systems(
    config: Config, options: argparse.Namespace, limits: Limits, stack: contextlib.AsyncExitStack
) -> Answerer:
    from ratchet.serve.answering import Answerer

    adapter = _adapter(RunFolder(config.folder), options.adapter)
    if adapter is not None:
        read_uniform_adapter(adapter)  # what is wrong with it is said before a model is loaded
    runner = open_runner(config, baselines=not options.no_baselines)
    stack.push_async_callback(runner.close)
    return Answerer(runner, adapter, config.training.model, limits)


def _adapter(run: RunFolder, given: str | None) -> str | None:
    if given is not None:
        return None if given == NO_ADAPTER else given
    best = best_round(run)
    return None if best is None else str(run.round(best).adapter)


def serve_index(options: argparse.Namespace) -> None:
    """Serve the indexes that the command line names."""
    limits = limits_of(options, index_server.Limits)
    need_extra("server", "ratchet index serve")
    key = read_key(options.host, options.key_file)
    from ratchet.retrieval.serving.app import create_app

    indexes = _open_indexes(options)
    with listen(options.host, options.port) as listener:
        app = create_app(indexes, limits, options.threads or usable_cores(), key)
        names = ", ".join(f"{name} ({index.digest[:12]})" for name, index in indexes.items())
        line = f"serving {names} on {address_of(listener)}"
        asyncio.run(serve_until_stopped(app, listener, drain_seconds=30, line=line))


def _open_indexes(options: argparse.Namespace) -> dict[str, Retriever]:
    if bool(options.config) == bool(options.index):
        raise UserError("say what to serve: either --config X.yaml or --index NAME=FOLDER (repeatable)")
    if options.config:
        config = open_config(options.config, options.overrides)
        return {Path(config.index.path).name or config.index.kind: open_index(config.index)}
    indexes: dict[str, Retriever] = {}
    for given in options.index:
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


def mcp(config: Config, options: argparse.Namespace) -> None:
    """Serve a config's index and sources over MCP."""
    need_extra("mcp", "an MCP server")
    key = read_key(options.host, options.key_file) if options.http else None
    from ratchet.retrieval.serving.mcp import create_server

    with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to the protocol
        retriever = open_index(config.index)
        sources = open_sources(config.sources, retriever, config.embedder)
        server = create_server(retriever, sources)
    if not options.http:
        return asyncio.run(_serve_mcp(server, sources))
    with listen(options.host, options.port) as listener:
        asyncio.run(_serve_mcp(server, sources, listener, key))


async def _serve_mcp(
    server: Server[Any], sources: Mapping[str, Source], listener: socket.socket | None = None, key: str | None = None
) -> None:
    from ratchet.retrieval.serving.mcp import guarded_app, serve_stdio

    async with contextlib.AsyncExitStack() as stack:
        for source in sources.values():
            stack.push_async_callback(source.close)
        if listener is None:
            await serve_stdio(server, stack.aclose)
        else:
            line = f"serving MCP on {address_of(listener)}/mcp"
            await serve_until_stopped(guarded_app(server, key), listener, drain_seconds=5, line=line)
