"""The systems as MCP tools: `answer` for those that answer questions, `verify` for those that give verdicts.

Both report every step as progress, where the client asks for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import BaseModel, Field, create_model

from ratchet.agents.core.steps import describe_step
from ratchet.core.config import Section
from ratchet.core.http.openai import ApiError
from ratchet.core.records import Trajectory
from ratchet.retrieval.mcp_results import NOTICE, Result, results_of
from ratchet.retrieval.serving.tools import Context, Server, Tool, tool_server
from ratchet.serve.answering import Answerer, Form
from ratchet.serve.chat import no_answer

MAX_CHARACTERS = 40_000
"""Of the documents of one answer."""
TOOLS: dict[str, tuple[Form, str]] = {
    "answer": ("question", "Answer a question from the documents of this server. It may take minutes."),
    "verify": ("claim", "Verify a claim against the documents of this server. It may take minutes."),
}


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
    tools = {}
    for name, (form, about) in TOOLS.items():
        if models := tuple(model.id for model in answerer.models.values() if model.form == form):
            fields: dict[str, Any] = {
                form: (str, Field(min_length=1, description=f"the {form}, as one text that stands alone")),
                "model": (Literal[models], Field(models[0], description="which system answers")),
            }
            arguments = create_model("Arguments", __base__=Section, **fields)
            tools[name] = Tool(about, arguments, ToolAnswer, _answering(answerer, form))
    return tool_server(tools)


def _answering(answerer: Answerer, form: Form) -> Callable[[Any, Context], Awaitable[ToolAnswer]]:
    async def answer(asked: Any, context: Context) -> ToolAnswer:
        """Answer, and report each step as it ends. Raises ApiError, also where there is no answer."""
        model, done = answerer.model(asked.model), 0
        question = answerer.question(model, getattr(asked, form))
        async with contextlib.aclosing(answerer.work(model, question)) as work:
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

    return answer
