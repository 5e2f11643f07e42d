"""The server's app.

POST /v1/chat/completions   a question to a model: serve/chat.py
GET  /v1/models, /v1/models/NAME, /health
/mcp                        the tools of serve/mcp.py, where the MCP SDK is installed
GET  /                      a page that asks and compares
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect

from ratchet import report
from ratchet.core.http.app import PAGE_HEADERS, add_health, open_app
from ratchet.core.http.document import EVENTS, errors
from ratchet.core.http.openai import EventStream, run_until_disconnect
from ratchet.serve.answering import Answerer, ServedModel
from ratchet.serve.chat import AnswerRequest, Completion, question_of

PAGE = Path(__file__).parent / "page"
REPORT = Path(report.__path__[0])
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
SECURITY = {
    **PAGE_HEADERS,
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""Headers of the page: it runs its own script and talks to its own server, and to nothing else."""


def create_app(answerer: Answerer, key: str | None = None, mcp: Starlette | None = None) -> FastAPI:
    """The app. `key`: what clients must send; `mcp`: an app with the route of the MCP tools."""

    @contextlib.asynccontextmanager
    async def open_mcp() -> AsyncIterator[None]:
        async with mcp.router.lifespan_context(mcp) if mcp is not None else contextlib.nullcontext():
            yield

    app = open_app(
        "Ratchet", key=key, max_body_bytes=answerer.limits.body_bytes, public=(*FILES, "/health"), around=open_mcp
    )
    add_health(app)
    started = int(time.time())

    @app.post("/v1/chat/completions", response_model=None, responses=EVENTS | errors(404, 429, 502, 504))
    async def chat(body: AnswerRequest, request: Request) -> Response:
        model = answerer.model(body.model)
        completion = Completion(answerer, model, question_of(answerer, model, body))
        if body.stream:
            return EventStream(completion.stream(body.stream_options is not None and body.stream_options.include_usage))
        try:
            return JSONResponse(await run_until_disconnect(request.receive, completion.whole()))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_shown(model, started) for model in answerer.models.values()]}

    @app.get("/v1/models/{name:path}", responses=errors(404))
    async def one_model(name: str) -> dict[str, Any]:
        return _shown(answerer.model(name), started)

    for path, (name, kind) in FILES.items():
        text = (PAGE / name).read_bytes()
        if name == "page.css":  # the look of the report, then what this page has of its own
            text = (REPORT / "base.css").read_bytes() + text
        elif name == "page.js":
            text += (REPORT / "script" / "words.js").read_bytes()
        app.add_api_route(path, _file(text, kind), include_in_schema=False)
    if mcp is not None:
        app.router.routes.extend(mcp.routes)
    return app


def _file(text: bytes, kind: str) -> Any:
    async def answer() -> Response:
        return Response(text, media_type=kind, headers=SECURITY)

    return answer


def _shown(model: ServedModel, created: int) -> dict[str, Any]:
    about = {"form": model.form, "policy": "base" if model.adapter is None else "adapter"}
    return {"id": model.id, "object": "model", "created": created, "owned_by": "ratchet", "ratchet": about}
