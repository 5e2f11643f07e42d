"""The page over a run while it goes on: read in the background, rendered when a browser asks, for this machine alone.

    GET /                                the page, which asks for itself again every few seconds
    GET /details?section=S&question=ID   what it shows of a question's trajectories
    GET /search?text=...                 the keys of the trajectories on the page in which these words were said

The run folder is only read.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.middleware.gzip import GZipMiddleware

from ratchet.core.errors import UserError
from ratchet.core.http.app import PAGE_HEADERS, open_app
from ratchet.core.http.document import errors
from ratchet.core.http.openai import ApiError, plain_error_response
from ratchet.core.records import Question
from ratchet.core.runfolder import RoundFolder
from ratchet.report.gather import Gathered, Gatherer, Section
from ratchet.report.live_state import RunState
from ratchet.report.page import Drawings, render_page
from ratchet.report.rounds import numbers_on_disk
from ratchet.report.view import DetailReader, View, make_index, words_of
from ratchet.rounds.stage import ExperimentRun

EVERY = 2.0
"""Seconds between two looks for what is new; a page that is younger is not rendered again."""
BATCH_SECONDS = 0.25
"""How long the reading holds up those who ask."""
HEADERS = {**PAGE_HEADERS, "Content-Security-Policy": "frame-ancestors 'none'"}


class LiveRun:
    """A run that is followed. Use as a context: the thread that reads it runs inside."""

    def __init__(self, experiment: ExperimentRun, number: int | None, max_questions: int) -> None:
        """`number`: the round; default: the last one that has any records."""
        config = self._config = experiment.config
        self._run, self._number = experiment.run, number
        self._gatherer, self._state = Gatherer(config, max_questions), RunState(experiment)
        self._drawings = Drawings()
        self._details = DetailReader(config)
        self._gathered: Gathered | None = None
        self._page: tuple[float, bytes] = (-EVERY, b"")
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="reader", daemon=True)

    def __enter__(self) -> LiveRun:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def _folder(self) -> RoundFolder:
        return self._run.round(self._number or max(numbers_on_disk(self._run), default=1))

    def _follow(self) -> None:
        before = 0.0
        while not self._stop.is_set():
            try:
                with self._lock:
                    share = self._gatherer.update(self._folder, BATCH_SECONDS)
            except (UserError, OSError):  # a file is being written; who asks for the page is told what it is
                share = before
            # A torn last line is never read, so the end is where nothing more is read.
            self._stop.wait(EVERY if share in (1.0, before) else 0.001)
            before = share

    def page(self) -> bytes:
        """The page, at most EVERY seconds old. Raises UserError."""
        with self._lock:
            if time.monotonic() - self._page[0] >= EVERY:
                gathered = self._gathered = self._gatherer.gather(self._folder)
                state = self._state.read(gathered, self._gatherer.share, self._gatherer.damaged)
                view = View(make_index(gathered), [])
                text = render_page(self._config, gathered, view, self._drawings, state)
                self._page = time.monotonic(), text.encode("utf-8", "replace")
            return self._page[1]

    def _shown(self) -> list[tuple[Section, Question]]:
        self.page()
        sections = self._gathered.sections if self._gathered else []
        return [(section, question) for section in sections for question in section.questions]

    def details(self, section_name: str, question_id: str) -> dict[str, Any] | None:
        """{runs, texts, passages, notes} of a question; None where the page does not show it. Raises UserError."""
        for section, question in self._shown():
            if (section.name, question.id) == (section_name, question_id):
                assert self._gathered is not None
                keys = [line.trajectory.key for _, line in section.lines[question_id]]
                trained = self._details.trained(self._gathered, keys)
                return {**self._details.read(section, [question], trained), "notes": self._details.problems}
        return None

    def search(self, text: str) -> list[str]:
        """The keys of the trajectories on the page in which each word was said. Raises UserError."""
        words, keys = text.lower().split(), []
        for section, question in self._shown():
            for _, line in section.lines[question.id]:
                said = "\n".join(words_of(line.read())).lower()
                if all(word in said for word in words):
                    keys.append(line.trajectory.key)
        return keys


def create_app(live: LiveRun) -> FastAPI:
    """The app over a run that is followed."""
    app = open_app("Ratchet watch", respond=plain_error_response)
    app.add_middleware(GZipMiddleware)

    @app.exception_handler(UserError)
    async def failed(_: Request, error: UserError) -> Response:
        return _json({"error": str(error)}, 500)

    # Plain functions run on threads: a slow disk does not hold up the others.
    @app.get("/", response_class=HTMLResponse)
    def page() -> Response:
        return Response(live.page(), media_type="text/html; charset=utf-8", headers=HEADERS)

    @app.get("/details", responses=errors(404))
    def details(section: str, question: str) -> Response:
        chunk = live.details(section, question)
        if chunk is None:
            raise ApiError(404, f"the page shows no question {question[:80]!r} in {section[:80]!r}")
        return _json(chunk)

    @app.get("/search")
    def search(text: str) -> Response:
        return _json(live.search(text[:500]))

    return app


def _json(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode(errors="replace"), status, media_type="application/json", headers=HEADERS)
