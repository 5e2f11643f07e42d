"""The report of a run while it goes on: made again when the page asks for itself, and served to this machine alone.

    GET /                                the page, which asks for itself every few seconds
    GET /details?section=S&question=ID   what it shows of a question's trajectories

The run folder is only read.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ratchet.core.errors import UserError
from ratchet.core.http.server import is_loopback
from ratchet.core.locks import holder_of
from ratchet.report.gather import Gathered, Gatherer
from ratchet.report.page import render_page
from ratchet.report.rounds import numbers_on_disk
from ratchet.report.view import DetailReader, View, make_index
from ratchet.rounds.artefacts import Digests
from ratchet.rounds.stages import ExperimentRun
from ratchet.rounds.status import LOCK, stage_states

EVERY = 2.0
"""Seconds for which a page is not made again; longer where making it took long."""
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Json = dict[str, Any]


class LiveRun:
    """A run that is followed: what is new of it is read when a page is asked for."""

    def __init__(self, experiment: ExperimentRun, number: int | None, max_questions: int) -> None:
        """`number`: the round; default: the last one that has any records."""
        config = self._config = experiment.config
        self._experiment, self._run, self._number = experiment, experiment.run, number
        self._gatherer, self._digests = Gatherer(config, max_questions), Digests(experiment.run)
        self._details = DetailReader(config)
        self._gathered: Gathered | None = None
        self._page, self._expires = b"", 0.0
        self._lock = threading.Lock()  # each request has a thread of its own

    def page(self) -> bytes:
        """The page, made again where it is too old. Raises UserError."""
        with self._lock:
            if (began := time.monotonic()) >= self._expires:
                folder = self._run.round(self._number or max(numbers_on_disk(self._run), default=1))
                with suppress(UserError, OSError):  # a file is being written
                    self._gatherer.update(folder)
                gathered = self._gathered = self._gatherer.gather(folder)
                view = View(make_index(gathered), [])
                text = render_page(self._config, gathered, view, self._state())
                self._page, now = text.encode("utf-8", "replace"), time.monotonic()
                self._expires = now + max(EVERY, now - began)
            return self._page

    def _state(self) -> Json:
        """The values of now.html.j2. The stage under way is the last one that has left anything, or the first to do."""
        states = stage_states(self._experiment, self._digests)
        left = [one for one in states if one.state != "done"]
        return {
            "now": next((one for one in reversed(left) if one.state == "part"), left[0] if left else None),
            "stages": states,
            "running": holder_of(self._run.path / LOCK),
            "damaged": self._gatherer.damaged,
        }

    def details(self, section_name: str, question_id: str) -> Json | None:
        """{runs, texts, passages, notes} of a question; None where the page does not show it. Raises UserError."""
        with self._lock:
            for section in self._gathered.sections if self._gathered else ():
                for question in section.questions:
                    if self._gathered and (section.name, question.id) == (section_name, question_id):
                        keys = [line.trajectory.key for _, line in section.lines[question_id]]
                        trained = self._details.trained(self._gathered, keys)
                        return {**self._details.read(section, [question], trained), "notes": self._details.problems}
        return None

    def answer(self, host: str, target: str) -> tuple[int, str, bytes]:
        """(status, content type, body) for a GET request: its Host header, and what it asks for."""
        value: Any
        try:
            if not is_loopback(urlsplit(f"//{host}").hostname or ""):  # a page of another site, by a name of its own
                status, value = 403, {"error": "this page is for this machine alone: open it at 127.0.0.1"}
            elif (url := urlsplit(target)).path == "/":
                return 200, "text/html; charset=utf-8", self.page()
            else:
                asked = {name: values[0] for name, values in parse_qs(url.query).items()}
                section, question = asked.get("section", ""), asked.get("question", "")
                value = self.details(section, question) if url.path == "/details" else None
                problem = {"error": f"the page shows no question {question[:80]!r} in {section[:80]!r}"}
                status, value = (404, problem) if value is None else (200, value)
        except ValueError as error:
            status, value = 400, {"error": str(error)}
        except UserError as error:
            status, value = 500, {"error": str(error)}
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return status, "application/json", text.encode("utf-8", "replace")


def open_server(live: LiveRun, port: int) -> ThreadingHTTPServer:
    """The server of a run's page, on 127.0.0.1; `serve_forever` runs it. UserError where the port cannot be used."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_GET(self) -> None:
            status, kind, body = live.answer(self.headers.get("Host", ""), self.path)
            self.send_response(status)
            for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {port}: cannot listen there ({error}); choose another --port") from error
