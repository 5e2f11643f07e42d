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
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ratchet.config import Section
from ratchet.errors import UserError
from ratchet.http.guard import Guard
from ratchet.records import Passage, content_key
from retrieval.index import Index, Retriever
from retrieval.mcp_results import Results, results_of
from retrieval.serving.tools import Context, Server, Tool, http_app, tool_server
from retrieval.sources.source import Source, ToolError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

MAX_RESULTS = 20
MAX_OFFSET = 1_000
"""Ranks below it are not paged to: they cost more than they say."""
MAX_CHARACTERS = 40_000
"""Of one answer; what is left out follows under its cursor."""
MAX_BODY = 1 << 20
"""Bytes of a request, which holds a query."""
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class SearchArguments(Section):
    """The arguments of a search tool."""

    query: str = Field(min_length=1, max_length=2_000, description="what to search for")
    k: int = Field(5, ge=1, le=MAX_RESULTS, description="most results")
    cursor: str = Field("", max_length=200, description="of an earlier answer to the same query: what follows it")


class FetchArguments(Section):
    """The arguments of the fetch tool."""

    id: str = Field(min_length=1, max_length=2_000, description="of a result, or of a whole document")
    cursor: str = Field("", max_length=200, description="of an earlier answer for the same id: what follows it")


def create_server(retriever: Retriever, sources: Mapping[str, Source]) -> Server[Any]:
    """Raises UserError where a source's name cannot be a tool's."""

    async def search_index(query: str, k: int, offset: int) -> list[Passage]:
        return await asyncio.to_thread(retriever.search, query, k, offset)

    tools = {"search": _search_tool("Search the documents of the local index.", search_index, retriever.digest)}
    if isinstance(retriever, Index):  # a search server gives out no document by its id
        about = "One result of `search` by its id, or a whole document by its document_id."
        tools["fetch"] = Tool(about, FetchArguments, Results, _fetching(retriever))
    for name in sources:
        if name in tools or not TOOL_NAME.fullmatch(name):
            raise UserError(
                f"sources.{name}: as a tool of the MCP server it needs another name: letters, digits, '_', '.' and "
                f"'-', at most 64 of them, and not {' or '.join(tools)}"
            )
    for name, source in sources.items():
        about = getattr(source, "about", "") or f"Search with {name}."
        tools[name] = _search_tool(about, source.search, content_key(name, source.digest), local=False)
    return tool_server(tools)


def _search_tool(
    about: str, search: Callable[[str, int, int], Awaitable[Sequence[Passage]]], digest: str, local: bool = True
) -> Tool:
    async def run(asked: SearchArguments, context: Context) -> Results:
        key = content_key(digest, asked.query)
        offset = _offset(asked.cursor, key, MAX_OFFSET)
        passages = await search(asked.query, asked.k, offset)
        more = len(passages) == asked.k and offset + asked.k < MAX_OFFSET
        return _page(passages, offset, key, more)

    return Tool(about, SearchArguments, Results, run, local)


def _fetching(index: Index) -> Callable[[FetchArguments, Context], Awaitable[Results]]:
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

    async def run(asked: FetchArguments, context: Context) -> Results:
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


def guarded_app(server: Server[Any], key: str | None) -> ASGIApp:
    """The server's app over streamable HTTP, at /mcp. `key`: what clients must send."""
    return Guard(http_app(server), key, MAX_BODY)


async def close_sources(sources: Mapping[str, Source]) -> None:
    """Close the sources of an MCP server."""
    async with contextlib.AsyncExitStack() as stack:
        for source in sources.values():
            stack.push_async_callback(source.close)
