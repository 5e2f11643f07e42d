"""The check of every request before anything of it is read: its key or host, and the size of its body."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Collection

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ratchet.core.http.openai import ApiError, error_response
from ratchet.core.http.server import is_loopback

CLOSE = {"Connection": "close"}
"""For an answer after which nothing more is read."""
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::[0-9]{1,5})?", re.ASCII)
"""A Host header, and in it the name or address."""
ORIGIN = re.compile(rf"https?://{HOST.pattern}", re.ASCII | re.I)
"""An Origin header: a browser sends exactly this, or `null`."""


class Guard:
    """ASGI middleware before everything else: who may ask, and how much of a body is read.

    With a key, every path but the `public` ones wants it as a bearer token. Without one, the server is this machine's
    alone: a page elsewhere cannot reach it by giving its own name this machine's address, nor with a form, because
    only JSON is read. At most `max_requests` bodies are worked on at once. `respond` gives an error the server's form.
    HEAD is answered as GET is, without the body.
    """

    def __init__(
        self,
        app: ASGIApp,
        key: str | None,
        max_body_bytes: int = 0,
        public: Collection[str] = (),
        max_requests: int | None = None,
        respond: Callable[[ApiError], Response] = error_response,
    ) -> None:
        self._app, self._key, self._max_body_bytes, self._public = app, key, max_body_bytes, frozenset(public)
        self._max_requests, self._requests, self._respond = max_requests, 0, respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn goes by its own scope, and sends the headers alone
        try:
            self._check(scope, Headers(scope=scope))
        except ApiError as error:
            return await self._respond(error)(scope, receive, send)
        if scope["method"] != "POST":
            return await self._app(scope, receive, send)
        self._requests += 1
        try:
            await self._app(scope, limited_body(receive, self._max_body_bytes), send)
        finally:
            self._requests -= 1

    def _check(self, scope: Scope, headers: Headers) -> None:
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy that goes by the other one sees another end of the body, and another request behind it.
            message = "the request has both Content-Length and Transfer-Encoding; send one of them"
            raise ApiError(400, message, headers=CLOSE)
        if "websocket" in headers.get("upgrade", "").lower():
            raise ApiError(400, "this server has no WebSockets; send an ordinary request", headers=CLOSE)
        if self._key is None:
            for name, form in (("host", HOST), ("origin", ORIGIN)):
                for value in headers.getlist(name):
                    named = form.fullmatch(value)
                    if named is None or not is_loopback(named[1].lower()):
                        message = f"{name}: {value[:100]!r} is not this machine, and the server has no key"
                        raise ApiError(403, message)
        elif scope["path"] not in self._public and not hmac.compare_digest(
            bearer_token(headers).encode(), self._key.encode()
        ):
            message = "the request has no valid key; send it as `Authorization: Bearer KEY`"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        if scope["method"] == "POST":
            if self._max_requests is not None and self._requests >= self._max_requests:
                message = f"the server is busy with {self._requests} requests, which is its limit (--concurrent)"
                raise ApiError(503, message, headers={"Retry-After": "1"})
            length = headers.get("content-length", "0")
            if length.isdigit() and int(length) > self._max_body_bytes:
                raise body_too_large(self._max_body_bytes)
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise ApiError(415, "send the body as JSON, with `Content-Type: application/json`")


def bearer_token(headers: Headers) -> str:
    """Return the token of `Authorization: Bearer TOKEN`; empty where there is none, as under any other scheme."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def limited_body(receive: Receive, max_bytes: int) -> Receive:
    """Wrap `receive` to raise ApiError as soon as a body is too long."""
    size = 0

    async def limited_receive() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > max_bytes:
            raise body_too_large(max_bytes)
        return message

    return limited_receive


def body_too_large(max_bytes: int) -> ApiError:
    """The error for a body over the limit."""
    return ApiError(413, f"the body is larger than {max_bytes} bytes, which is the limit (--body-bytes)")
