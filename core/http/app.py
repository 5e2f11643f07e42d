"""Opens the apps of our servers: the guard before everything, one form of errors, and the headers of pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as HttpError

from ratchet.core.http.guard import Guard
from ratchet.core.http.openai import FAILED, ApiError, error_response
from ratchet.core.installed import DISTRIBUTION

Respond = Callable[[ApiError], Response]
PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of a page for people, besides its own Content-Security-Policy."""


def open_app(
    title: str,
    *,
    key: str | None = None,
    max_body_bytes: int = 0,
    max_requests: int | None = None,
    public: Collection[str] = (),
    respond: Respond = error_response,
    around: Callable[[], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """Open an app without routes. The first five arguments are the guard's (`core/http/guard.py`).

    `respond` gives every error its form; what a bug raises is logged and never shown. `around` is open while the app
    serves.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if around is None:
            yield
        else:
            async with around():
                yield

    invalid = 400 if respond is error_response else 422  # as OpenAI's API answers
    # Without FastAPI's pages: they fetch scripts from elsewhere. /openapi.json is there.
    app = FastAPI(title=title, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(
        Guard, key=key, max_body_bytes=max_body_bytes, public=public, max_requests=max_requests, respond=respond
    )

    @app.exception_handler(HttpError)
    async def refused(_: Request, error: HttpError) -> Response:
        return respond(error)  # type: ignore[arg-type]  # it reads what both have

    @app.exception_handler(RequestValidationError)
    async def unfit(_: Request, error: RequestValidationError) -> Response:
        problems = [(".".join(map(str, p["loc"][1:])) or "body", p["msg"]) for p in error.errors()[:5]]
        message = "; ".join(f"{where}: {what}" for where, what in problems)
        return respond(ApiError(invalid, message, param=problems[0][0]))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        # The connection is closed after a bug, and a client that does not know would send its next request there.
        return respond(ApiError(500, FAILED, headers={"Connection": "close"}))

    return app


def add_health(app: FastAPI) -> None:
    """Add the route by which others see that the server is ready."""

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"ready": True, "version": version(DISTRIBUTION)}
