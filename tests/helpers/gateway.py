"""A program that asks the gateway, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from inference.completion import Message, SamplingParams
from inference.scripted import Replies, ScriptedEngine
from inference.wrappers import WrapperFormat
from ratchet.http.server import address_of, listen, serve_beside
from ratchet.records import Trajectory
from tests.helpers.playing import QUESTION, Shelf, passage, play
from tests.helpers.tiny import tiny_format, tiny_tokenizer
from tests.inference.test_messages import HERMES
from training.rows import build_rows, check_rows

Program = Callable[[httpx.AsyncClient], Awaitable[str | dict[str, Any] | None]]
"""Returns its answer, alone or with what belongs to it."""


async def record(program: Program, replies: Replies, tools: bool = False, **settings: Any) -> Trajectory:
    """A trajectory of a program that runs here, at a `url`. It answers with what it returns."""
    chat = settings.pop("chat", None) or tiny_format()
    if tools:
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = HERMES
        chat = WrapperFormat.from_tokenizer(tokenizer)
    agent = ScriptedEngine(chat, replies, settings.pop("max_context", 32_000))
    shelf = Shelf({QUESTION.text: [passage(1, "Ada built it."), passage(2)]})
    failed: list[Exception] = []

    async def answer(request: Request) -> Response:
        base = (await request.json())["base_url"].removesuffix("/v1")
        try:
            async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client:
                given = await program(client)
        except Exception as error:
            failed.append(error)
            raise
        return JSONResponse({"answer": given} if isinstance(given, str) else given or {})

    app, listener = Starlette(routes=[Route("/", answer, methods=["POST"])]), listen("127.0.0.1", 0)
    config = {"name": "external", "settings": {"url": address_of(listener), **settings}}
    async with serve_beside(app, listener, 5):
        trajectory = await play(config, agent, shelf)
    if failed:
        raise failed[0]
    return trajectory


async def say(client: httpx.AsyncClient, messages: Sequence[Any], **more: Any) -> dict[str, Any]:
    answer = await client.post("/v1/chat/completions", json={"model": "m", "messages": list(messages), **more})
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def texts(trajectory: Trajectory) -> list[str]:
    return [tiny_format().decode(conversation.ids) for conversation in trajectory.conversations]


def learnt(trajectory: Trajectory) -> list[str]:
    """What the rows of a trajectory teach, each checked against the ids that the engine sampled."""
    rows, _ = build_rows([trajectory], [trajectory.key], 10**9)
    actions = check_rows(rows, {trajectory.key: trajectory})
    assert actions == len([call for call in trajectory.model_calls if call.parse != "malformed"])
    return [tiny_format().decode([i for i, on in zip(row.ids, row.loss_mask, strict=True) if on]) for row in rows]


def numbered(_: str, params: SamplingParams, messages: Sequence[Message]) -> str:
    """Each reply tells what it answers and is unlike the others."""
    return f"to {messages[-1]['content']} {params.seed % 9973}"
