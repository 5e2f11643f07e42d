"""`ratchet mcp --config X.yaml`: an MCP server that offers a config's index and its sources as tools.

Over stdin and stdout, or with --http as a server on this machine. Tools: `search` and `fetch` for the index, and one
for every entry of the config's `sources`, by its name. Every answer has the shape of mcp_results.py, beside it the
same as JSON text; what a tool refuses comes back as its error, as a message for the model that called it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ratchet.core.config import Section
from ratchet.core.errors import UserError, fault_in
from ratchet.core.http.guard import Guard
from ratchet.core.records import Passage
from ratchet.retrieval.index import Index
from ratchet.retrieval.mcp_results import Results, results_of
from ratchet.retrieval.retriever import Retriever
from ratchet.retrieval.serving.tools import Context, Server, Tool, http_app, tool_server
from ratchet.retrieval.sources.source import Source, ToolError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

MAX_RESULTS = 20
MAX_OFFSET = 1_000
"""Ranks below it are not paged to: they cost more than they say."""
MAX_CHARACTERS = 40_000
"""Of one answer; what is left out follows at its `next_offset`."""
MAX_BODY = 1 << 20
"""Bytes of a request, which holds a query."""
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class SearchArguments(Section):
    """The arguments of a search tool."""

    query: str = Field(min_length=1, max_length=2_000, description="what to search for")
    k: int = Field(5, ge=1, le=MAX_RESULTS, description="most results")
    offset: int = Field(0, ge=0, lt=MAX_OFFSET, description="results to skip: `next_offset` of an earlier answer")


class FetchArguments(Section):
    """The arguments of the fetch tool."""

    id: str = Field(min_length=1, max_length=2_000, description="of a result, or of a whole document")
    offset: int = Field(0, ge=0, description="results to skip: `next_offset` of an earlier answer")


def create_server(retriever: Retriever, sources: Mapping[str, Source]) -> Server[Any]:
    """Raises UserError where a source's name cannot be a tool's."""

    async def search_index(query: str, k: int, offset: int) -> list[Passage]:
        return await asyncio.to_thread(retriever.search, query, k, offset)

    tools = {"search": _search_tool("Search the documents of the local index.", search_index)}
    if isinstance(retriever, Index):  # a search server gives out no document by its id
        about = "One result of `search` by its id, or a whole document by its document_id."
        tools["fetch"] = Tool(about, FetchArguments, Results, _fetching(retriever))
    for name in sources:
        if name in tools or not TOOL_NAME.fullmatch(name):
            fault = "a tool has this name" if name in tools else fault_in(name, TOOL_NAME.fullmatch)
            raise UserError(
                f"sources.{name}: as a tool of the MCP server it needs another name ({fault}): letters, digits, '_', "
                f"'.' and '-', at most 64 of them, and not {' or '.join(tools)}"
            )
    for name, source in sources.items():
        about = getattr(source, "about", "") or f"Search with {name}."
        tools[name] = _search_tool(about, source.search, local=False)
    return tool_server(tools)


def _search_tool(
    about: str, search: Callable[[str, int, int], Awaitable[Sequence[Passage]]], local: bool = True
) -> Tool:
    async def run(asked: SearchArguments, context: Context) -> Results:
        passages = await search(asked.query, asked.k, asked.offset)
        return _page(passages, asked.offset, len(passages) == asked.k and asked.offset + asked.k < MAX_OFFSET)

    return Tool(about, SearchArguments, Results, run, local)


def _fetching(index: Index) -> Callable[[FetchArguments, Context], Awaitable[Results]]:
    def fetch(asked: FetchArguments) -> Results:
        chunks = index.store.chunks_of(asked.id)
        document, _, number = asked.id.rpartition("#")
        if not chunks and re.fullmatch(r"[0-9]{1,9}", number, re.ASCII):
            chunks = index.store.chunks_of(document)[int(number) : int(number) + 1]
        if not chunks:
            raise ToolError(f"There is nothing under the id {asked.id[:200]!r}; take ids from the results of `search`.")
        page = chunks[asked.offset : asked.offset + MAX_RESULTS]
        return _page([index.store.passage(chunk, 0.0) for chunk in page], asked.offset, page[-1:] != chunks[-1:])

    async def run(asked: FetchArguments, context: Context) -> Results:
        return await asyncio.to_thread(fetch, asked)

    return run


def _page(passages: Sequence[Passage], offset: int, more: bool) -> Results:
    """As many passages as fit, and where the next page begins."""
    results = results_of(passages, MAX_CHARACTERS)
    more = bool(results) and (more or len(results) < len(passages))
    return Results(results=results, next_offset=offset + len(results) if more else 0)


def guarded_app(server: Server[Any], key: str | None) -> ASGIApp:
    """The server's app over streamable HTTP, at /mcp. `key`: what clients must send."""
    return Guard(http_app(server), key, MAX_BODY)
