"""The systems as MCP tools: `answer` for those that answer questions, `verify` for those that give verdicts.

Both report every step as progress, where the client asks for it. What a tool refuses comes back as its error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, create_model
from starlette.applications import Starlette

from agents.core.steps import describe_step
from ratchet.config import Section
from ratchet.errors import UserError, did_you_mean
from ratchet.http.openai import ApiError
from ratchet.records import Trajectory
from serve.answering import Answerer, ServedModel
from serve.chat import no_answer

try:
    import mcp_types as types
    from mcp.server import Server
    from mcp.server.context import ServerRequestContext
    from mcp.server.transport_security import TransportSecuritySettings
except ImportError as error:
    raise UserError("an MCP server needs the SDK: pip install 'ratchet[mcp]'") from error

from retrieval.mcp_results import NOTICE, Result, results_of

MAX_CHARACTERS = 40_000
"""Of the documents of one answer."""

logger = logging.getLogger(__name__)


class ToolAnswer(BaseModel):
    """What a tool returns."""

    notice: str = NOTICE
    answer: str = Field(description="the answer, or for a claim its label")
    explanation: str = Field(description="the reasons for it, where the system gives them apart from it")
    model: str
    status: str = Field(description="finished; else the answer is what the system had in hand")
    documents: list[Result] = Field(description="the documents that support it")


def create_server(answerer: Answerer) -> Server[Any]:
    """An MCP server with one tool for every kind of system that is served."""
    tools = {
        "answer": ("question", "Answer a question from the documents of this server."),
        "verify": ("claim", "Verify a claim against the documents of this server."),
    }
    models = {name: [m for m in answerer.models.values() if m.form == form] for name, (form, _) in tools.items()}
    arguments = {name: _arguments(tools[name][0], found) for name, found in models.items() if found}

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=f"{tools[name][1]} It may take minutes. {NOTICE}",
                    input_schema=taken.model_json_schema(),
                    output_schema=ToolAnswer.model_json_schema(),
                    annotations=types.ToolAnnotations(read_only_hint=True),
                )
                for name, taken in arguments.items()
            ]
        )

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            given = _checked(arguments, params.name, params.arguments or {})
            answer = await _answer(answerer, answerer.model(given["model"]), given[tools[params.name][0]], context)
        except ApiError as error:
            return _refusal(str(error.detail))
        except Exception:
            logger.exception("%r failed", params.name)
            return _refusal("The tool failed; the server's log says why. Asking again the same way will not help.")
        # As JSON, where no text of a document can end its field.
        content = types.TextContent(type="text", text=answer.model_dump_json())
        return types.CallToolResult(content=[content], structured_content=answer.model_dump(mode="json"))

    return Server("ratchet", instructions=NOTICE, on_list_tools=list_tools, on_call_tool=call_tool)


def _arguments(form: str, models: list[ServedModel]) -> type[Section]:
    names = tuple(model.id for model in models)
    fields: dict[str, Any] = {
        form: (str, Field(min_length=1, description=f"the {form}, as one text that stands alone")),
        "model": (Literal[names], Field(names[0], description="which system answers")),
    }
    return create_model("Arguments", __base__=Section, **fields)


def _checked(tools: Mapping[str, type[Section]], name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    if name not in tools:
        raise ApiError(404, f"There is no tool {name[:100]!r}{did_you_mean(name[:100], tools)}.")
    try:
        return tools[name].model_validate(arguments).model_dump()
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise ApiError(400, f"{name} cannot be called like this. " + "; ".join(problems)[:1_000]) from None


async def _answer(answerer: Answerer, model: ServedModel, text: str, context: ServerRequestContext[Any]) -> ToolAnswer:
    """Answer, and report each step as it ends. Raises ApiError, also where there is no answer."""
    done = 0
    async with contextlib.aclosing(answerer.work(model, answerer.question(model, text))) as work:
        async for part in work:
            if isinstance(part, Trajectory):
                trajectory = part
                continue
            done += 1
            await context.session.report_progress(done, message=str(describe_step(part)))
    if not trajectory.answer:
        raise ApiError(502, no_answer(trajectory))
    return ToolAnswer(
        answer=trajectory.answer,
        explanation=trajectory.explanation,
        model=model.id,
        status=trajectory.status,
        documents=results_of(trajectory.passages, MAX_CHARACTERS),
    )


def _refusal(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=message)], is_error=True)


def http_app(answerer: Answerer) -> Starlette:
    """The tools over streamable HTTP at /mcp. Whoever adds it to an app checks hosts and keys (ratchet/http/guard.py).

    Without sessions: the answer of a call, and its progress, are the response to that call.
    """
    anyone = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return create_server(answerer).streamable_http_app(stateless_http=True, transport_security=anyone)
