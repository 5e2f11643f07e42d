"""`ratchet mcp --config X`: serve a config's index and sources to MCP clients."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence

from commands.arguments import config_of, config_parser
from ratchet.http.server import address_of, listen, read_key
from retrieval.serving.mcp import DEFAULT_PORT, close_sources, create_server, serve_http, serve_stdio


def main(arguments: Sequence[str], prog: str = "python -m retrieval mcp") -> None:
    """Serve a config's index and sources over MCP."""
    parser = config_parser(prog, "SearchTool a config's index and sources to MCP clients.")
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP; default: stdin and stdout")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"default: {DEFAULT_PORT}; 0: any free one")
    parser.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine alone")
    parser.add_argument("--key-file", metavar="FILE", help="with --http: the key that clients must send")
    given = parser.parse_args(arguments)
    key = read_key(given.host, given.key_file) if given.http else None
    from retrieval.loader import open_index
    from retrieval.sources.registry import open_sources

    with contextlib.redirect_stdout(sys.stderr):  # stdout belongs to the protocol
        config = config_of(given)
        retriever = open_index(config.index)
        sources = open_sources(config.sources, retriever, config.embedder)
        server = create_server(retriever, sources)
    if not given.http:
        asyncio.run(serve_stdio(server, lambda: close_sources(sources)))
        return
    with listen(given.host, given.port) as listener:
        print(f"serving MCP on {address_of(listener)}/mcp", file=sys.stderr, flush=True)
        asyncio.run(serve_http(server, sources, listener, key))
