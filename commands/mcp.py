"""`ratchet mcp --config X`: serve a config's index and sources to MCP clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.commands.arguments import PORTS, add_server_arguments, config_of, config_parser
from ratchet.core.extras import need_extra
from ratchet.core.http.server import address_of, listen, read_key, serve_until_stopped

if TYPE_CHECKING:
    from ratchet.retrieval.serving.mcp import Server
    from ratchet.retrieval.sources.source import Source


def main(arguments: Sequence[str], prog: str = "ratchet mcp") -> None:
    """Serve a config's index and sources over MCP."""
    parser = config_parser(prog, "Serve a config's index and sources to MCP clients.")
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP; default: stdin and stdout")
    add_server_arguments(parser, PORTS["mcp"])
    given = parser.parse_args(arguments)
    need_extra("mcp", "an MCP server")
    key = read_key(given.host, given.key_file) if given.http else None
    from ratchet.retrieval.loader import open_index
    from ratchet.retrieval.serving.mcp import create_server
    from ratchet.retrieval.sources.registry import open_sources

    with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to the protocol
        config = config_of(given)
        retriever = open_index(config.index)
        sources = open_sources(config.sources, retriever, config.embedder)
        server = create_server(retriever, sources)
    if not given.http:
        return asyncio.run(_serve(server, sources))
    with listen(given.host, given.port) as listener:
        asyncio.run(_serve(server, sources, listener, key))


async def _serve(
    server: Server[Any], sources: Mapping[str, Source], listener: socket.socket | None = None, key: str | None = None
) -> None:
    """Over stdin and stdout, or where `listener` listens; the sources are closed in the end."""
    from ratchet.retrieval.serving.mcp import guarded_app, serve_stdio

    async with contextlib.AsyncExitStack() as stack:
        for source in sources.values():
            stack.push_async_callback(source.close)
        if listener is None:
            await serve_stdio(server, stack.aclose)
        else:
            line = f"serving MCP on {address_of(listener)}/mcp"
            await serve_until_stopped(guarded_app(server, key), listener, drain_seconds=5, line=line)
