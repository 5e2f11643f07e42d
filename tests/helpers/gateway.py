"""A program that asks the gateway, and what is recorded of it."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

from ratchet.core.http.environment import certificates
from ratchet.core.records import Trajectory
from ratchet.inference.chat_formats import WrapperFormat
from ratchet.inference.completion import Message, SamplingParams
from ratchet.inference.scripted import Replies, ScriptedEngine
from ratchet.training.rows import build_rows, check_rows
from tests.helpers.playing import QUESTION, Shelf, passage, play
from tests.helpers.tiny import tiny_format, tiny_tokenizer
from tests.inference.test_messages import HERMES

Program = Callable[[httpx.AsyncClient], Awaitable[str | None]]
NAME = f"{QUESTION.id}:3"
"""Of the trajectory."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def record(program: Program, replies: Replies, tools: bool = False, **settings: Any) -> Trajectory:
    """A trajectory of a program that comes by itself, and ends it with what it returns."""
    chat = settings.pop("chat", None) or tiny_format()
    if tools:
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = HERMES
        chat = WrapperFormat.from_tokenizer(tokenizer)
    question, resources = settings.pop("question", QUESTION), settings.pop("resources", None)
    agent, port = ScriptedEngine(chat, replies, settings.pop("max_context", 32_000)), free_port()
    shelf = Shelf({QUESTION.text: [passage(1, "Ada built it."), passage(2)]})
    config = {"name": "external", "settings": {"port": port, "timeout": 30, **settings}}
    playing = asyncio.ensure_future(play(config, agent, shelf, question=question, resources=resources))
    await asyncio.sleep(0)
    url, trust = f"http://127.0.0.1:{port}/t/{NAME}", certificates()
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=trust, timeout=60) as client:
        while not (await client.get(f"http://127.0.0.1:{port}/trajectories")).json()["trajectories"]:
            assert not playing.done()
        if answer := await program(client):
            assert (await client.post("/finish", json={"answer": answer})).status_code == 200
    return await playing


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
    rows, _ = build_rows(trajectory, 10**9)
    actions = check_rows(rows, {trajectory.key: trajectory})
    assert actions == len([call for call in trajectory.model_calls if call.parse != "malformed"])
    return [tiny_format().decode([i for i, on in zip(row.ids, row.loss_mask, strict=True) if on]) for row in rows]


def numbered(_: str, params: SamplingParams, messages: Sequence[Message]) -> str:
    """Each reply tells what it answers and is unlike the others."""
    return f"to {messages[-1]['content']} {params.seed % 9973}"
