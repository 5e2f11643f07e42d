"""The server's app: one page and three addresses that it asks, for this machine's browsers alone.

    GET /                      the page; /page.js and /page.css
    GET /state                 stages, counts, engines, GPUs
    GET /trajectories?...      a page of the list (report.watch.query.Filters)
    GET /trajectories/KEY      one trajectory

Nothing can be changed through it. A page elsewhere cannot read it: no other origin is allowed, and a request must name
this machine as its host.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from ratchet.errors import UserError
from ratchet.http.guard import Guard
from ratchet.http.openai import ApiError
from report.outcomes import OUTCOMES
from report.watch.index import Stale
from report.watch.query import Filters
from report.watch.watcher import Watcher

REPORT = Path(__file__).parent.parent
SCRIPTS = (REPORT / "script" / "base.js", REPORT / "script" / "trajectory.js", REPORT / "watch" / "page.js")
STYLES = (REPORT / "style.html.j2", REPORT / "watch" / "page.css")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def create_app(watcher: Watcher) -> FastAPI:
    """The app over a watched run."""
    app = FastAPI(title="Ratchet watch", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, key=None, respond=_refusal)
    page, script, style = _page(watcher), _script(), _joined(STYLES)

    @app.exception_handler(UserError)
    async def failed(_: Request, error: UserError) -> Response:
        return _json({"error": str(error)}, 500)

    @app.exception_handler(Stale)
    async def stale(_: Request, error: Stale) -> Response:
        return _json({"error": f"The index is being built again: {error}."}, 503)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        problems = [f"{'.'.join(map(str, p['loc'][1:]))}: {p['msg']}" for p in error.errors()[:5]]
        return _json({"error": "; ".join(problems)}, 422)

    @app.get("/")
    async def show_page() -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers=HEADERS)

    @app.get("/page.js")
    async def show_script() -> Response:
        return Response(script, media_type="text/javascript; charset=utf-8", headers=HEADERS)

    @app.get("/page.css")
    async def show_style() -> Response:
        return Response(style, media_type="text/css; charset=utf-8", headers=HEADERS)

    # Plain functions run on threads: a slow disk does not hold up the others.
    @app.get("/state")
    def state() -> Response:
        return _json(watcher.state())

    @app.get("/trajectories")
    def trajectories(filters: Annotated[Filters, Query()]) -> Response:
        return _json(watcher.find(filters))

    @app.get("/trajectories/{key}")
    def trajectory(key: str) -> Response:
        found = watcher.trajectory(key)
        return _json({"error": f"the index holds no trajectory {key[:80]!r}"}, 404) if found is None else _json(found)

    return app


def _refusal(error: ApiError) -> Response:
    response = _json({"error": str(error.detail)}, error.status_code)
    response.headers.update(error.headers or {})
    return response


def _json(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode(errors="replace"), status, media_type="application/json", headers=HEADERS)


def _page(watcher: Watcher) -> str:
    text = (REPORT / "watch" / "page.html").read_text()
    index = json.dumps({"outcomes": OUTCOMES}).replace("<", "\\u003c")
    return text.replace("{{ run }}", html.escape(str(watcher.config.folder))).replace("{{ index }}", index)


def _joined(paths: tuple[Path, ...]) -> str:
    return "\n".join(path.read_text() for path in paths)


def _script() -> str:
    return f'"use strict";\n(() => {{\n{_joined(SCRIPTS)}\nexplainTerms();\nwatch();\n}})();'
