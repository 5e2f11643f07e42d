"""The common part of our servers with an OpenAI-compatible API: errors, chat requests, streams, and turns. Requests
keep keys that are not known here: whoever reads a request says which it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as HttpError
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

if TYPE_CHECKING:
    from fastapi import HTTPException
else:
    try:  # the errors that FastAPI lets pass while it reads a body are its own
        from fastapi import HTTPException
    except ModuleNotFoundError:  # MCP over HTTP does without FastAPI
        HTTPException = HttpError

KEEP_ALIVE_SECONDS = 10.0
"""After so long without an event a stream has a comment, so that no proxy takes it for dead."""

FAILED = "the server failed; its log says why"
ONCE = {"x-should-retry": "false"}
"""Tells OpenAI's clients not to repeat a request that may have cost minutes."""

logger = logging.getLogger(__name__)
T = TypeVar("T")


# Errors


class ApiError(HTTPException):
    """An error answer in OpenAI's form, and Anthropic's: {"type", "error": {"message", "type", "param", "code"}}."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """`details`: what Anthropic's clients read of an error."""
        super().__init__(status, message, dict(headers or {}))
        self.param, self.code, self.details = param, code, details


def error_body(error: HttpError) -> dict[str, Any]:
    """Return the body of an error. Its type follows from the status, as OpenAI's own does."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 504: "timeout_error"}
    kind = kinds.get(error.status_code, "server_error" if error.status_code >= 500 else "invalid_request_error")
    param, code = getattr(error, "param", None), getattr(error, "code", None)
    body: dict[str, Any] = {"message": str(error.detail), "type": kind, "param": param, "code": code}
    if details := getattr(error, "details", None):
        body["details"] = dict(details)
    return {"type": "error", "error": body}


def error_response(error: HttpError) -> Response:
    """An error as a response."""
    body = json.dumps(error_body(error))
    return Response(body, error.status_code, error.headers, media_type="application/json")


def plain_error_response(error: HttpError) -> Response:
    """An error as a response of a server whose clients are not OpenAI's: {"error": message}."""
    body = json.dumps({"error": str(error.detail)})
    return Response(body, error.status_code, error.headers, media_type="application/json")


# Requests


class ContentPart(BaseModel):
    """One part of a message whose content is a list."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str = ""


class ChatMessage(BaseModel):
    """One message of a chat request. Keys such as tool_calls are in `model_extra`."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None

    def text(self, param: str) -> str:
        """Return the content as one text. Raises ApiError, which names the message as `param`, where a part is no
        text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        for part in self.content:
            if part.type not in ("text", "input_text"):
                raise ApiError(
                    400, f"{param}: a part of type {part.type[:50]!r} cannot be read; send text", param=param
                )
        return "\n".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    """The options of a stream."""

    include_usage: bool = False


class ChatRequest(BaseModel):
    """The body of POST /v1/chat/completions; the parameters of sampling are in `model_extra`."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None


# Streams


class EventStream(Response):
    """Server-sent events of JSON objects, then [DONE]. The work behind them is cancelled when the client leaves.

    The answer begins with the first event: an ApiError before it is an answer with its status, and one after it is an
    event {"error": ...}, which OpenAI's clients raise.
    """

    def __init__(self, events: AsyncGenerator[Mapping[str, Any]]) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnect):
            await run_until_disconnect(receive, self._send_events(scope, receive, send))

    async def _send_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def write(text: str, more: bool = True) -> None:
            nonlocal started
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                started = True
            await send({"type": "http.response.body", "body": text.encode(errors="replace"), "more_body": more})

        try:
            async with contextlib.aclosing(_with_pauses(self._events)) as events:
                async for event in events:
                    await write(": keep-alive\n\n" if event is None else _data(event))
            await write("data: [DONE]\n\n", more=False)
        except HttpError as error:
            if not started:
                return await error_response(error)(scope, receive, send)
            await write(_data(error_body(error)), more=False)
        except Exception:
            logger.exception("a stream failed")
            problem = ApiError(500, FAILED)
            if not started:
                return await error_response(problem)(scope, receive, send)
            await write(_data(error_body(problem)), more=False)


def _data(event: Mapping[str, Any]) -> str:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n"


async def _with_pauses(events: AsyncGenerator[T]) -> AsyncGenerator[T | None]:
    """Yield the events, and None whenever none came for KEEP_ALIVE_SECONDS. Closing it closes them."""
    arrived: asyncio.Queue[T | None] = asyncio.Queue()

    async def read() -> None:
        async with contextlib.aclosing(events):
            async for event in events:
                arrived.put_nowait(event)

    reading = asyncio.ensure_future(read())
    reading.add_done_callback(lambda _: arrived.put_nowait(None))
    try:
        while True:
            try:
                event = await asyncio.wait_for(arrived.get(), KEEP_ALIVE_SECONDS)
            except TimeoutError:
                yield None
                continue
            if event is None:
                break
            yield event
        reading.result()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run the work of a request whose body was read. It is cancelled, and ClientDisconnect raised, when the client
    leaves."""

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(leave())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def json_response(receive: Receive, work: Coroutine[Any, Any, Mapping[str, Any]]) -> Response:
    """The result of a request's work as JSON; status 499, which nobody reads, where the client left."""
    try:
        body = json.dumps(await run_until_disconnect(receive, work))
    except ClientDisconnect:
        return Response(status_code=499)
    return Response(body, media_type="application/json")


# Turns


MAX_SECONDS = 100.0
"""A request that would be answered later than this is refused: many clients and proxies give up then."""
MAX_RETRY_SECONDS = 60.0
"""The longest `Retry-After`: OpenAI's clients do not wait longer."""
ASSUMED_SECONDS = 60.0
"""Seconds of a request until one has ended: as a question takes the small model on two busy cores."""


class Turns:
    """Runs so much work at once; more waits for its turn, and a request that would wait too long is refused with
    429."""

    def __init__(self, running: int, waiting: int) -> None:
        self._free = asyncio.Semaphore(running)
        self._running, self._taken, self._most = running, 0, running + waiting
        self._began: dict[object, float] = {}
        """The start of the work on each request that is worked on."""
        self._took: deque[float] = deque(maxlen=2 * running)
        """Seconds of the work on the last ones that ended."""

    @property
    def each(self) -> float:
        """Seconds of a request's work: the most of the last ones, or what one that is worked on has taken already."""
        now = time.monotonic()
        return max([*(self._took or [ASSUMED_SECONDS]), *(now - began for began in self._began.values())])

    @property
    def wait(self) -> float:
        """Seconds that a request which comes now waits for its turn."""
        return max(0, self._taken - self._running + 1) * self.each / self._running

    @contextlib.asynccontextmanager
    async def turn(self, seconds: float | None) -> AsyncIterator[None]:
        """Wait for one's turn, for `seconds` with the waiting. Raises ApiError 429, and 504 where the time is over."""
        too_late = self._taken >= self._running and self.wait + self.each > MAX_SECONDS
        if self._taken >= self._most or too_late:
            later = math.ceil(min(max(self.wait, 1.0), MAX_RETRY_SECONDS))
            message = f"the server is busy with {self._taken} requests; ask again in {later} s"
            raise ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": str(later)})
        self._taken += 1
        try:
            async with asyncio.timeout(seconds) as limit, self._free:
                key = object()
                self._began[key] = time.monotonic()
                try:
                    yield
                    self._took.append(time.monotonic() - self._began[key])
                finally:
                    del self._began[key]
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"no answer within {seconds:g} s, which is the server's limit"
            raise ApiError(504, message, code="timeout", headers=ONCE) from None
        finally:
            self._taken -= 1
