"""`ratchet mcp --config X.yaml`: an MCP server that offers a config's index and its sources as tools.

Over stdin and stdout, or with --http as a server on this machine. Tools: `search` and `fetch` for the index, and one
for every entry of the config's `sources`, by its name. Every answer is structured (`Results`), beside it the
same as JSON text; what a tool refuses comes back as its error, as a message for the model that called it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from ratchet.core.config import Section
from ratchet.core.errors import UserError, did_you_mean, fault_in
from ratchet.core.http.guard import Guard
from ratchet.core.records import Passage
from ratchet.retrieval.index import Store, store_of
from ratchet.retrieval.retriever import Retriever, SourceError
from ratchet.retrieval.sources.mcp import NOTICE, Results, results_of
from ratchet.retrieval.sources.source import Source, ToolError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

try:
    import mcp_types as types
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext
except ImportError as error:
    raise UserError("an MCP server needs the SDK: pip install 'ratchet-agents[mcp]'") from error


REFUSALS = (ToolError, SourceError, UserError)
"""Errors whose message is for the model that called the tool."""

logger = logging.getLogger(__name__)
Context = ServerRequestContext[Any]


@dataclass(frozen=True)
class Tool:
    """One tool."""

    about: str
    arguments: type[BaseModel]
    run: Callable[[Any], Awaitable[Results]]
    """A function of checked arguments. Raises one of REFUSALS."""
    local: bool = True
    """True if it reads only what the server holds."""


def tool_server(tools: Mapping[str, Tool]) -> Server[Any]:
    """Make the MCP server of these tools, by name."""

    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=f"{tool.about} {NOTICE}",
                    input_schema=tool.arguments.model_json_schema(),
                    output_schema=Results.model_json_schema(),
                    annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=not tool.local),
                )
                for name, tool in tools.items()
            ]
        )

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            arguments = _checked(tools, params.name, params.arguments or {})
            answer = await tools[params.name].run(arguments)
        except REFUSALS as error:
            logger.info("%r: %s", params.name, error)
            return _refusal(str(error))
        except Exception:
            logger.exception("%r failed", params.name)
            return _refusal("The tool failed; the server's log says why. Asking again the same way will not help.")
        # As JSON, where no text of a document can end its field.
        text = types.TextContent(type="text", text=answer.model_dump_json())
        return types.CallToolResult(content=[text], structured_content=answer.model_dump(mode="json"))

    return Server("ratchet", instructions=NOTICE, on_list_tools=list_tools, on_call_tool=call_tool)


def _checked(tools: Mapping[str, Tool], name: str, arguments: Mapping[str, Any]) -> BaseModel:
    if name not in tools:
        raise ToolError(f"There is no tool {name[:100]!r}{did_you_mean(name[:100], tools)}.")
    try:
        return tools[name].arguments.model_validate(arguments)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise ToolError(f"{name} cannot be called like this. " + "; ".join(problems)[:1_000]) from None


def _refusal(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=message)], is_error=True)


async def serve_stdio(server: Server[Any], close: Callable[[], Awaitable[None]]) -> None:
    """Serve until stdin ends, SIGTERM or Ctrl-C, then call `close`."""
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


MAX_RESULTS = 20
MAX_OFFSET = 1_000
"""Ranks below it are not paged to: they cost more than they say."""
MAX_CHARACTERS = 40_000
"""The limit of one answer; what is left out follows at its `next_offset`."""
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
    """Make the MCP server. Raises UserError where a source's name cannot be a tool's."""

    async def search_index(query: str, k: int, offset: int) -> list[Passage]:
        return await asyncio.to_thread(retriever.search, query, k, offset)

    tools = {"search": _search_tool("Search the documents of the local index.", search_index)}
    if (store := store_of(retriever)) is not None:  # a search server gives out no document by its id
        about = "One result of `search` by its id, or a whole document by its document_id."
        tools["fetch"] = Tool(about, FetchArguments, _fetching(store))
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
    async def run(asked: SearchArguments) -> Results:
        passages = await search(asked.query, asked.k, asked.offset)
        return _page(passages, asked.offset, len(passages) == asked.k and asked.offset + asked.k < MAX_OFFSET)

    return Tool(about, SearchArguments, run, local)


def _fetching(store: Store) -> Callable[[FetchArguments], Awaitable[Results]]:
    def fetch(asked: FetchArguments) -> Results:
        chunks = store.chunks_of(asked.id)
        document, _, number = asked.id.rpartition("#")
        if not chunks and re.fullmatch(r"[0-9]{1,9}", number, re.ASCII):
            chunks = store.chunks_of(document)[int(number) : int(number) + 1]
        if not chunks:
            raise ToolError(f"There is nothing under the id {asked.id[:200]!r}; take ids from the results of `search`.")
        page = chunks[asked.offset : asked.offset + MAX_RESULTS]
        return _page([store.passage(chunk, 0.0) for chunk in page], asked.offset, page[-1:] != chunks[-1:])

    return lambda asked: asyncio.to_thread(fetch, asked)


def _page(passages: Sequence[Passage], offset: int, more: bool) -> Results:
    results = results_of(passages, MAX_CHARACTERS)
    more = bool(results) and (more or len(results) < len(passages))
    return Results(results=results, next_offset=offset + len(results) if more else 0)


def guarded_app(server: Server[Any], key: str | None) -> ASGIApp:
    """Return the server's app over streamable HTTP, at /mcp, behind a guard that checks hosts and keys."""
    from mcp.server.transport_security import TransportSecuritySettings

    anyone = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return Guard(server.streamable_http_app(transport_security=anyone), key, MAX_BODY)
