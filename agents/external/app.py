"""The gateway: a server on 127.0.0.1 in front of a run's engines, with the APIs of OpenAI and Anthropic, which records
what it answers.

    POST /v1/chat/completions   one completion, streamed or not; tools, stop and response_format included
    POST /v1/responses          the same in OpenAI's Responses API
    POST /v1/messages           the same in Anthropic's Messages API; /v1/messages/count_tokens counts its prompt
    GET  /v1/models             the roles
    POST /search                {"query", "k", "offset"} -> {"passages"}
    POST /reward                {"reward", "text"}: what the program makes of its own work, from 0 to 1
    POST /step                  {"text"}: a remark for whoever reads the trajectory
    POST /finish                {"answer", "explanation", "documents"}: ends a trajectory whose program came by itself
    GET  /trajectories          those that are open: their question, and the addresses that they have

A request says which trajectory it belongs to by the beginning of its path (/t/NAME/v1/...), by the header
X-Ratchet-Trajectory: NAME, or by its API key. A program that a run starts has a random name; a program that comes by
itself finds QUESTION:SAMPLE under /trajectories, each while it is open, in the characters that an address and a header
can hold (%20 for a blank).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import ClientDisconnect

from ratchet.agents.external.program import AnswerFields, ProgramAnswer, Task
from ratchet.agents.external.protocols import Dialect, ProgramRequest
from ratchet.agents.external.recording import Recording
from ratchet.agents.external.translations import CountRequest, MessagesRequest, ResponsesRequest
from ratchet.core.errors import UserError
from ratchet.core.http.app import open_app
from ratchet.core.http.guard import bearer_token
from ratchet.core.http.openai import ApiError, EventStream, run_until_disconnect
from ratchet.core.http.server import address_of, listen, serve_beside
from ratchet.core.records import Passage
from ratchet.retrieval.serving import Limits

HOST = "127.0.0.1"
HEADER = "x-ratchet-trajectory"
MAX_BODY = 8 << 20
"""Bytes of a request."""
MAX_REMARK = 10_000
"""Characters of a program's remark."""
OWN_PATH = "/t/{name:any}"

logger = logging.getLogger(__name__)


class AnyName(PathConvertor):
    """A name in a path: of any characters, line breaks among them."""

    regex = "(?s:.*)"


register_url_convertor("any", AnyName())


class SearchRequest(BaseModel):
    """A search of a program."""

    query: str = Field(max_length=Limits().query_characters)
    k: int | None = Field(None, gt=0, le=1000)
    offset: int = Field(0, ge=0, le=1000)


class OwnReward(BaseModel):
    """A program's reward of its own work."""

    reward: float = Field(ge=0, le=1)
    text: str = Field("", max_length=MAX_REMARK)


class Step(BaseModel):
    """A remark of a program."""

    text: str = Field(max_length=MAX_REMARK)


class Gateway:
    """The trajectories that are open, by the names that requests give them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._open: dict[str, Recording] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._requests: dict[str, set[asyncio.Task[Any]]] = {}

    @contextlib.asynccontextmanager
    async def recorded(self, recording: Recording, name: str | None = None) -> AsyncIterator[str]:
        """Take requests for a trajectory, under the name that this gives. What still runs at the end is cancelled.

        `name`: default, a random one. Trajectories of one name, as of base and adapter, are open one after another.
        """
        turn = self._turns.setdefault(name, asyncio.Lock()) if name else contextlib.nullcontext()
        name = name or secrets.token_urlsafe(24)
        async with turn:
            self._open[name], self._requests[name] = recording, set()
            try:
                yield name
            finally:
                del self._open[name]
                requests = self._requests.pop(name)
                for task in requests:
                    task.cancel()
                await asyncio.gather(*requests, return_exceptions=True)

    def find(self, request: Request) -> tuple[str, Recording]:
        """(the name, the trajectory) that a request belongs to. ApiError 401 where it names none that is open."""
        key = bearer_token(request.headers) or request.headers.get("x-api-key", "")  # OpenAI's clients, and Anthropic's
        name = request.path_params.get("name") or unquote(request.headers.get(HEADER) or key)
        if name in self._open:
            return name, self._open[name]
        message = "no trajectory of this name is open: name it by the path /t/NAME/v1, the header "
        raise ApiError(401, f"{message}{HEADER} or the API key; it may have ended", code="invalid_api_key")

    async def run(self, request: Request, body: Dialect) -> dict[str, Any]:
        """A completion; it is cancelled with its trajectory."""
        key, recording = self.find(request)
        task = asyncio.ensure_future(recording.chat(body))
        self._requests[key].add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if key in self._open and self._open[key] is recording:
                raise
            raise ApiError(409, "the trajectory has ended") from None
        finally:
            task.cancel()
            self._requests.get(key, set()).discard(task)

    def tasks(self) -> list[Task]:
        """The tasks of the open trajectories."""
        return [
            Task.of(one.question, one.tools.sample, self.address, name, one.settings.roles[0])
            for name, one in self._open.items()
        ]


def create_app(gateway: Gateway, lists: bool) -> FastAPI:
    """The gateway's app. `lists`: whoever asks may see the trajectories."""
    app = open_app("Ratchet gateway", max_body_bytes=MAX_BODY)

    async def respond(request: Request, body: Dialect) -> Response:
        gateway.find(request)

        async def events() -> AsyncGenerator[dict[str, Any]]:
            for event in body.events(await gateway.run(request, body)):
                yield event

        if body.stream:
            return EventStream(events())
        try:
            completion = await run_until_disconnect(request.receive, gateway.run(request, body))
        except ClientDisconnect:
            return Response(status_code=499)  # which nobody reads
        return Response(json.dumps(body.answer(completion)), media_type="application/json")

    async def completions(request: Request, body: ProgramRequest) -> Response:
        return await respond(request, body)

    async def responses(request: Request, body: ResponsesRequest) -> Response:
        return await respond(request, body)

    async def messages(request: Request, body: MessagesRequest) -> Response:
        return await respond(request, body)

    async def models(request: Request) -> dict[str, Any]:
        _, recording = gateway.find(request)
        roles = recording.settings.roles
        return {"object": "list", "data": [{"id": role, "object": "model", "owned_by": "ratchet"} for role in roles]}

    async def search(request: Request, body: SearchRequest) -> dict[str, list[Passage]]:
        _, recording = gateway.find(request)
        return {"passages": await recording.search(body.query, body.k, body.offset)}

    async def reward(request: Request, body: OwnReward) -> dict[str, Any]:
        _, recording = gateway.find(request)
        recording.remark(body.text, body.reward)
        return {"recorded": True}

    async def step(request: Request, body: Step) -> dict[str, Any]:
        _, recording = gateway.find(request)
        recording.remark(body.text)
        return {"recorded": True}

    async def finish(request: Request, body: AnswerFields) -> dict[str, Any]:
        _, recording = gateway.find(request)
        if not lists:
            raise ApiError(409, "this trajectory ends with its program: print the answer instead")
        if not recording.answer.done():
            recording.answer.set_result(ProgramAnswer.of(body))
        return {"finished": True}

    async def count(request: Request, body: CountRequest) -> dict[str, Any]:
        _, recording = gateway.find(request)
        return {"input_tokens": await asyncio.to_thread(recording.count, body)}

    for prefix in ("", OWN_PATH):
        app.add_api_route(f"{prefix}/v1/messages/count_tokens", count, methods=["POST"])
        for path, complete in (("chat/completions", completions), ("responses", responses), ("messages", messages)):
            app.add_api_route(f"{prefix}/v1/{path}", complete, methods=["POST"], response_model=None)
        app.add_api_route(f"{prefix}/reward", reward, methods=["POST"])
        app.add_api_route(f"{prefix}/step", step, methods=["POST"])
        app.add_api_route(f"{prefix}/v1/models", models, methods=["GET"])
        app.add_api_route(f"{prefix}/search", search, methods=["POST"])
        app.add_api_route(f"{prefix}/finish", finish, methods=["POST"])
    if lists:

        @app.get("/trajectories")
        async def trajectories() -> dict[str, Any]:
            return {"trajectories": [asdict(task) for task in gateway.tasks()]}

    return app


# The server, which the trajectories of an event loop share


@dataclass
class _Running:
    """A server that runs, and how many trajectories use it."""

    gateway: Gateway
    server: contextlib.AsyncExitStack
    users: int = 0


_running: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, _Running]] = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def open_gateway(port: int) -> AsyncIterator[Gateway]:
    """The gateway of the running event loop: opened by its first user, closed by its last. UserError where the port is
    in use. `port`: 0 for a free one, where programs that the run starts are told of it."""
    servers = _running.setdefault(asyncio.get_running_loop(), {})
    running = servers.get(port)
    if running is None:
        try:
            listener = listen(HOST, port)
        except UserError as error:
            raise UserError(f"system.settings.port: {error}") from None
        gateway = Gateway(address_of(listener))
        if port:
            logger.warning("waiting for programs: %s/trajectories lists what is open", gateway.address)
        running = servers[port] = _Running(gateway, contextlib.AsyncExitStack())
        await running.server.enter_async_context(serve_beside(create_app(gateway, lists=bool(port)), listener, 1))
    running.users += 1
    try:
        yield running.gateway
    finally:
        running.users -= 1
        if not running.users:
            del servers[port]
            await running.server.aclose()
