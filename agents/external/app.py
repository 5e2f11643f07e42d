"""The gateway: a server on 127.0.0.1 in front of a run's engines, with the APIs of OpenAI and Anthropic, which records
what it answers.

    POST /v1/chat/completions, /v1/responses, /v1/messages      one completion, streamed or not
    POST /v1/messages/count_tokens                              the tokens of its prompt
    POST /v1/embeddings         vectors of the config's `embedder`
    GET  /v1/models             the roles
    POST /search                {"query", "k", "offset"} -> {"passages"}
    POST /reward                {"reward", "text"}: what the program makes of its own work, from 0 to 1
    POST /step                  {"text"}: a remark for whoever reads the trajectory
    POST /finish                {"answer", "explanation", "documents"}: ends a trajectory whose program came by itself
    GET  /trajectories          those that are open: their question, and the addresses that they have

A request says which trajectory it belongs to by the beginning of its path (/t/NAME/v1/...), by the header
X-Ratchet-Trajectory: NAME, or by its API key. The name is random, or QUESTION:SAMPLE in the characters that addresses
and headers can hold where programs come by themselves.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any, Literal
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from pydantic import BeforeValidator, ConfigDict, Field
from starlette.convertors import PathConvertor, register_url_convertor

from ratchet.agents.external.program import AnswerFields, Body, ProgramAnswer, Task
from ratchet.agents.external.protocols import Dialect
from ratchet.agents.external.recording import Recording
from ratchet.agents.external.translations import DIALECTS, MessagesRequest
from ratchet.core.errors import UserError
from ratchet.core.http.app import open_app
from ratchet.core.http.guard import bearer_token
from ratchet.core.http.openai import ApiError, EventStream, json_response
from ratchet.core.http.server import address_of, listen, serve_beside
from ratchet.core.records import Passage
from ratchet.retrieval.serving import Limits

HOST = "127.0.0.1"
HEADER = "x-ratchet-trajectory"
MAX_BODY = 8 << 20
"""Bytes of a request."""
MAX_REMARK = 10_000
"""Characters of a program's remark."""

logger = logging.getLogger(__name__)


class AnyName(PathConvertor):
    """A name in a path: of any characters, line breaks among them."""

    regex = "(?s:.*)"


register_url_convertor("any", AnyName())


class Gateway:
    """The trajectories that are open, by the names that requests give them."""

    def __init__(self, address: str, lists: bool) -> None:
        """`lists`: programs come by themselves, and may see the trajectories and end them."""
        self.address, self.lists = address, lists
        self.server, self.users = contextlib.AsyncExitStack(), 0
        self.open: dict[str, Recording] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def recorded(self, recording: Recording, name: str | None = None) -> AsyncIterator[str]:
        """Take requests for a trajectory, under the name that this gives. What still runs at the end is cancelled.

        `name`: default, a random one. Trajectories of one name, as of base and adapter, are open one after another.
        """
        turn = self._turns.setdefault(name, asyncio.Lock()) if name else contextlib.nullcontext()
        name = name or secrets.token_urlsafe(24)
        async with turn:
            self.open[name] = recording
            try:
                yield name
            finally:
                del self.open[name]
                await recording.close()

    def find(self, request: Request) -> Recording:
        """The trajectory that a request belongs to. ApiError 401 where it names none that is open."""
        key = bearer_token(request.headers) or request.headers.get("x-api-key", "")  # OpenAI's clients, and Anthropic's
        name = request.path_params.get("name") or unquote(request.headers.get(HEADER) or key)
        if name in self.open:
            return self.open[name]
        message = "no trajectory of this name is open: name it by the path /t/NAME/v1, the header "
        raise ApiError(401, f"{message}{HEADER} or the API key; it may have ended", code="invalid_api_key")


def _as_texts(value: Any) -> Any:
    """A text, or several."""
    if isinstance(value, list) and any(isinstance(one, int | list) for one in value):
        raise ValueError("send texts, not token ids (LangChain's client: check_embedding_ctx_length=False)")
    return [value] if isinstance(value, str) else value


class EmbeddingsRequest(Body):
    """The body of POST /v1/embeddings."""

    model_config = ConfigDict(extra="forbid")
    model: str
    input: Annotated[list[str], BeforeValidator(_as_texts), Field(min_length=1)]
    encoding_format: Literal["float", "base64"] = "float"
    user: str = ""


class SearchRequest(Body):
    """A search of a program."""

    query: str = Field(max_length=Limits().query_characters)
    k: int | None = Field(None, gt=0, le=1000)
    offset: int = Field(0, ge=0, le=1000)


class Step(Body):
    """A remark of a program."""

    text: str = Field(max_length=MAX_REMARK)


class OwnReward(Step):
    """A program's reward of its own work."""

    reward: float = Field(ge=0, le=1)
    text: str = Field("", max_length=MAX_REMARK)


def create_app(gateway: Gateway) -> FastAPI:
    """The gateway's app."""
    app, router, opened = open_app("Ratchet gateway", max_body_bytes=MAX_BODY), APIRouter(), Depends(gateway.find)

    for path, dialect in DIALECTS.items():

        async def complete(request: Request, body: Dialect, recording: Recording = opened) -> Response:
            async def events() -> AsyncGenerator[dict[str, Any]]:
                for event in body.events(await recording.chat(body)):
                    yield event

            async def whole() -> dict[str, Any]:
                return body.answer(await recording.chat(body))

            return EventStream(events()) if body.stream else await json_response(request.receive, whole())

        complete.__annotations__["body"] = dialect
        router.post(path)(complete)

    @router.post("/v1/messages/count_tokens")
    async def count(body: MessagesRequest, recording: Recording = opened) -> dict[str, int]:
        return {"input_tokens": await asyncio.to_thread(recording.count, body)}

    @router.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest, recording: Recording = opened) -> dict[str, Any]:
        data = []
        for index, row in enumerate(await recording.embed(body.input)):
            plain = body.encoding_format == "float"
            vector = row.tolist() if plain else base64.b64encode(row.astype("<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": vector})
        return {"object": "list", "model": body.model, "data": data, "usage": {"prompt_tokens": 0, "total_tokens": 0}}

    @router.get("/v1/models")
    async def models(recording: Recording = opened) -> dict[str, Any]:
        roles = recording.settings.roles
        return {"object": "list", "data": [{"id": role, "object": "model", "owned_by": "ratchet"} for role in roles]}

    @router.post("/search")
    async def search(body: SearchRequest, recording: Recording = opened) -> dict[str, list[Passage]]:
        return {"passages": await recording.search(body.query, body.k, body.offset)}

    @router.post("/reward")
    async def reward(body: OwnReward, recording: Recording = opened) -> dict[str, bool]:
        recording.remark(body.text, body.reward)
        return {"recorded": True}

    @router.post("/step")
    async def step(body: Step, recording: Recording = opened) -> dict[str, bool]:
        recording.remark(body.text)
        return {"recorded": True}

    @router.post("/finish")
    async def finish(body: AnswerFields, recording: Recording = opened) -> dict[str, bool]:
        if not gateway.lists:
            raise ApiError(409, "this trajectory ends with its program: print the answer instead")
        if not recording.ended.done():
            recording.ended.set_result(ProgramAnswer(**body.model_dump()))
        return {"finished": True}

    app.include_router(router)
    app.include_router(router, prefix="/t/{name:any}")
    if gateway.lists:

        @app.get("/trajectories")
        async def trajectories() -> dict[str, Any]:
            opened = gateway.open.items()
            tasks = (Task.of(one.question, one.tools.sample, gateway.address, name, one.role) for name, one in opened)
            return {"trajectories": [asdict(task) for task in tasks]}

    return app


_gateways: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[asyncio.Lock, dict[int, Gateway]]] = WeakKeyDictionary()
"""By event loop: what is held while a gateway is opened or closed, and the open ones by port."""


@contextlib.asynccontextmanager
async def open_gateway(port: int) -> AsyncIterator[Gateway]:
    """The gateway of the running event loop: opened by its first user, closed by its last. UserError where the port is
    in use. `port`: 0 for a free one, where programs that the run starts are told of it."""
    turn, opened = _gateways.setdefault(asyncio.get_running_loop(), (asyncio.Lock(), {}))
    async with turn:
        if port not in opened:
            try:
                listener = listen(HOST, port)
            except UserError as error:
                raise UserError(f"system.settings.port: {error}") from None
            gateway = Gateway(address_of(listener), lists=bool(port))
            await gateway.server.enter_async_context(serve_beside(create_app(gateway), listener, 1))
            opened[port] = gateway
            if port:
                logger.warning("waiting for programs: %s/trajectories lists what is open", gateway.address)
        gateway = opened[port]
        gateway.users += 1
    try:
        yield gateway
    finally:
        gateway.users -= 1
        async with turn:  # else who comes while it closes would find its port in use
            if not gateway.users and opened.get(port) is gateway:
                del opened[port]
                await gateway.server.aclose()
