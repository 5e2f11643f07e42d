"""An MCP server from tools as data: each with its arguments and its answer as pydantic models, and what runs it.

Every answer is structured, beside it the same as JSON text. What a tool refuses comes back as its error, in words for
the model that called it. Over stdin and stdout (`serve_stdio`), or as an app (`http_app`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from ratchet.core.errors import UserError, did_you_mean
from ratchet.retrieval.retriever import SourceError
from ratchet.retrieval.sources.mcp import NOTICE
from ratchet.retrieval.sources.source import ToolError

try:
    import mcp_types as types
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext
    from starlette.exceptions import HTTPException
except ImportError as error:
    raise UserError("an MCP server needs the SDK: pip install 'ratchet-agents[mcp]'") from error

if TYPE_CHECKING:
    from starlette.applications import Starlette

REFUSALS = (ToolError, SourceError, UserError, HTTPException)
"""Errors whose message is for the model that called the tool."""

logger = logging.getLogger(__name__)
Context = ServerRequestContext[Any]


@dataclass(frozen=True)
class Tool:
    """One tool."""

    about: str
    arguments: type[BaseModel]
    answer: type[BaseModel]
    run: Callable[[Any, Context], Awaitable[BaseModel]]
    """Of checked arguments and the call's context. Raises one of REFUSALS."""
    local: bool = True
    """Whether it reads only what the server holds."""


def tool_server(tools: Mapping[str, Tool]) -> Server[Any]:
    """The MCP server of these tools, by name."""

    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=f"{tool.about} {NOTICE}",
                    input_schema=tool.arguments.model_json_schema(),
                    output_schema=tool.answer.model_json_schema(),
                    annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=not tool.local),
                )
                for name, tool in tools.items()
            ]
        )

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            arguments = _checked(tools, params.name, params.arguments or {})
            answer = await tools[params.name].run(arguments, context)
        except REFUSALS as error:
            logger.info("%r: %s", params.name, error)
            return _refusal(str(error.detail) if isinstance(error, HTTPException) else str(error))
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


def http_app(server: Server[Any]) -> Starlette:
    """The server's app over streamable HTTP, at /mcp. It belongs behind a guard, which checks hosts and keys."""
    from mcp.server.transport_security import TransportSecuritySettings

    anyone = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return server.streamable_http_app(transport_security=anyone)


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
