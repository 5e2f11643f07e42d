"""`python -m retrieval mcp --config X.yaml`: an MCP server that offers a config's index and its sources as tools.

Over stdin and stdout, or with --http as a server on this machine. Tools: `search` and `fetch` for the index, and one
for every entry of the config's `sources`, by its name. Every answer has the shape of mcp_results.py, beside it the
same as JSON text; what a tool refuses comes back as its error, as a message for the model that called it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from ratchet.config import Section
from ratchet.errors import UserError, did_you_mean
from ratchet.http.server import serve_until_stopped, server_settings
from ratchet.records import Passage, content_key
from retrieval.errors import SourceError
from retrieval.index import Index, Retriever
from retrieval.mcp_results import NOTICE, Results, results_of
from retrieval.sources.source import Source, ToolError

try:
    import mcp_types as types
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext
except ImportError as error:
    raise UserError("an MCP server needs the SDK: pip install 'ratchet[mcp]'") from error

MAX_RESULTS = 20
MAX_OFFSET = 1_000
"""Ranks below it are not paged to: they cost more than they say."""
MAX_CHARACTERS = 40_000
"""Of one answer; what is left out follows under its cursor."""
DEFAULT_PORT = 8089
MAX_BODY = 1 << 20
"""Bytes of a request, which holds a query."""
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

if TYPE_CHECKING:
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)


class SearchArguments(Section):
    """The arguments of a search tool."""

    query: str = Field(min_length=1, max_length=2_000, description="what to search for")
    k: int = Field(5, ge=1, le=MAX_RESULTS, description="most results")
    cursor: str = Field("", max_length=200, description="of an earlier answer to the same query: what follows it")


class FetchArguments(Section):
    """The arguments of the fetch tool."""

    id: str = Field(min_length=1, max_length=2_000, description="of a result, or of a whole document")
    cursor: str = Field("", max_length=200, description="of an earlier answer for the same id: what follows it")


@dataclass(frozen=True)
class SearchTool:
    """One tool."""

    about: str
    arguments: type[SearchArguments] | type[FetchArguments]
    run: Callable[[Any], Awaitable[Results]]
    local: bool = True
    """Whether it reads only the index."""


def create_server(retriever: Retriever, sources: Mapping[str, Source]) -> Server[Any]:
    """Raises UserError where a source's name cannot be a tool's."""
    tools = _search_tools(retriever, sources)

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool_schema(name, tool) for name, tool in tools.items()])

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            answer = await _answer(tools, params.name, params.arguments or {})
        except (ToolError, SourceError, UserError) as error:
            logger.info("%r: %s", params.name, error)
            return types.CallToolResult(content=[types.TextContent(type="text", text=str(error))], is_error=True)
        except Exception:
            logger.exception("%r failed", params.name)
            message = "The tool failed; the server's log says why. Asking again the same way will not help."
            return types.CallToolResult(content=[types.TextContent(type="text", text=message)], is_error=True)
        # As JSON, where no text of a document can end its field.
        text = types.TextContent(type="text", text=answer.model_dump_json())
        return types.CallToolResult(content=[text], structured_content=answer.model_dump(mode="json"))

    return Server("ratchet", instructions=NOTICE, on_list_tools=list_tools, on_call_tool=call_tool)


async def _answer(tools: Mapping[str, SearchTool], name: str, arguments: Mapping[str, Any]) -> Results:
    if name not in tools:
        raise ToolError(f"There is no tool {name[:100]!r}{did_you_mean(name[:100], tools)}.")
    try:
        read = tools[name].arguments.model_validate(arguments)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise ToolError(f"{name} cannot be called like this. " + "; ".join(problems)[:1_000]) from None
    return await tools[name].run(read)


def _tool_schema(name: str, tool: SearchTool) -> types.Tool:
    return types.Tool(
        name=name,
        description=tool.about,
        input_schema=tool.arguments.model_json_schema(),
        output_schema=Results.model_json_schema(),
        annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=not tool.local),
    )


# The tools


def _search_tools(retriever: Retriever, sources: Mapping[str, Source]) -> dict[str, SearchTool]:
    async def search_index(query: str, k: int, offset: int) -> list[Passage]:
        return await asyncio.to_thread(retriever.search, query, k, offset)

    about = f"Search the documents of the local index. {NOTICE}"
    tools = {"search": SearchTool(about, SearchArguments, _searching(search_index, retriever.digest))}
    if isinstance(retriever, Index):  # a search server gives out no document by its id
        about = f"One result of `search` by its id, or a whole document by its document_id. {NOTICE}"
        tools["fetch"] = SearchTool(about, FetchArguments, _fetching(retriever))
    for name in sources:
        if name in tools or not TOOL_NAME.fullmatch(name):
            raise UserError(
                f"sources.{name}: as a tool of the MCP server it needs another name: letters, digits, '_', '.' and "
                f"'-', at most 64 of them, and not {' or '.join(tools)}"
            )
    for name, source in sources.items():
        about = f"{getattr(source, 'about', '') or f'Search with {name}.'} {NOTICE}"
        run = _searching(source.search, content_key(name, source.digest))
        tools[name] = SearchTool(about, SearchArguments, run, local=False)
    return tools


def _searching(
    search: Callable[[str, int, int], Awaitable[Sequence[Passage]]], digest: str
) -> Callable[[SearchArguments], Awaitable[Results]]:
    async def run(asked: SearchArguments) -> Results:
        key = content_key(digest, asked.query)
        offset = _offset(asked.cursor, key, MAX_OFFSET)
        passages = await search(asked.query, asked.k, offset)
        more = len(passages) == asked.k and offset + asked.k < MAX_OFFSET
        return _page(passages, offset, key, more)

    return run


def _fetching(index: Index) -> Callable[[FetchArguments], Awaitable[Results]]:
    def fetch(asked: FetchArguments) -> Results:
        chunks = index.store.chunks_of(asked.id)
        document, _, number = asked.id.rpartition("#")
        if not chunks and re.fullmatch(r"[0-9]{1,9}", number, re.ASCII):
            chunks = index.store.chunks_of(document)[int(number) : int(number) + 1]
        if not chunks:
            raise ToolError(f"There is nothing under the id {asked.id[:200]!r}; take ids from the results of `search`.")
        key = content_key(index.digest, asked.id)
        offset = _offset(asked.cursor, key, len(chunks))
        page = chunks[offset : offset + MAX_RESULTS]
        return _page([index.store.passage(chunk, 0.0) for chunk in page], offset, key, page[-1:] != chunks[-1:])

    async def run(asked: FetchArguments) -> Results:
        return await asyncio.to_thread(fetch, asked)

    return run


def _page(passages: Sequence[Passage], offset: int, key: str, more: bool) -> Results:
    """As many passages as fit, and where the next page begins."""
    results = results_of(passages, MAX_CHARACTERS)
    more = more or len(results) < len(passages)
    cursor = base64.urlsafe_b64encode(f"{offset + len(results)} {key[:12]}".encode()).decode() if more else ""
    return Results(results=results, cursor=cursor)


def _offset(cursor: str, key: str, end: int) -> int:
    if not cursor:
        return 0
    with contextlib.suppress(binascii.Error, ValueError):
        offset, _, mark = base64.urlsafe_b64decode(cursor.encode()).decode().partition(" ")
        if mark == key[:12] and re.fullmatch(r"[0-9]{1,9}", offset, re.ASCII) and int(offset) < end:
            return int(offset)
    raise ToolError("cursor: no earlier answer to the same request gave this one; leave it out to start again.")


# Serving


async def serve_stdio(server: Server[Any], close: Callable[[], Awaitable[None]]) -> None:
    """Until stdin ends, then `close`. SIGTERM and Ctrl-C end it too."""
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    serving, stopped = asyncio.ensure_future(serve()), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    await close()
    if not serving.done():
        os._exit(0)  # a thread waits for the next line of stdin, and nothing but a line would call it back
    stopping.cancel()
    await serving


def guarded_app(server: Server[Any], key: str | None) -> ASGIApp:
    """The server's app over streamable HTTP, at /mcp. `key`: what clients must send."""
    from mcp.server.transport_security import TransportSecuritySettings

    from ratchet.http.guard import Guard

    anyone = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # the guard checks hosts and origins
    return Guard(server.streamable_http_app(transport_security=anyone), key, MAX_BODY)


async def serve_http(
    server: Server[Any], sources: Mapping[str, Source], listener: socket.socket, key: str | None
) -> None:
    """Until SIGTERM or Ctrl-C."""
    try:
        await serve_until_stopped(server_settings(guarded_app(server, key), 5), listener)
    finally:
        await close_sources(sources)


async def close_sources(sources: Mapping[str, Source]) -> None:
    """Close the sources of an MCP server."""
    async with contextlib.AsyncExitStack() as stack:
        for source in sources.values():
            stack.push_async_callback(source.close)
