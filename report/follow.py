"""The report of a run while it goes on: made again when the page asks for itself, and served to this machine alone.

    GET /                                the page, which asks for itself every few seconds
    GET /details?section=S&question=ID   what it shows of a question's trajectories

The run folder is only read. Below the server: what the run is doing, from its ledger and what was read of it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ratchet.core.errors import UserError
from ratchet.core.http.server import is_loopback
from ratchet.core.locks import holder_of
from ratchet.core.progress import duration
from ratchet.core.runfolder import RoundFolder
from ratchet.report.gather import Gathered, Gatherer
from ratchet.report.page import Drawings, render_page
from ratchet.report.records import read_training_log
from ratchet.report.rounds import numbers_on_disk
from ratchet.report.view import DetailReader, View, make_index
from ratchet.rounds.ledger import latest_entries
from ratchet.rounds.stages import ExperimentRun, Stage, stages_of
from ratchet.rounds.status import LOCK, read_training_steps, summarize_entry

EVERY = 2.0
"""Seconds; a page that is younger is not made again."""
READ_SECONDS = 2.0
"""How long a page may read what is new; what is left is read for the next one."""
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
WINDOW = 120.0
"""Seconds over which a rate is measured."""
Json = dict[str, Any]


class LiveRun:
    """A run that is followed: what is new of it is read when a page is asked for."""

    def __init__(self, experiment: ExperimentRun, number: int | None, max_questions: int) -> None:
        """`number`: the round; default: the last one that has any records."""
        config = self._config = experiment.config
        self._run, self._number = experiment.run, number
        self._gatherer, self._state = Gatherer(config, max_questions), RunState(experiment)
        self._drawings, self._details = Drawings(), DetailReader(config)
        self._gathered: Gathered | None = None
        self._page: tuple[float, bytes] = (-EVERY, b"")
        self._lock = threading.Lock()  # each request has a thread of its own

    def page(self) -> bytes:
        """The page, at most EVERY seconds old. Raises UserError."""
        with self._lock:
            if time.monotonic() - self._page[0] >= EVERY:
                folder = self._run.round(self._number or max(numbers_on_disk(self._run), default=1))
                with suppress(UserError, OSError):  # a file is being written
                    self._gatherer.update(folder, READ_SECONDS)
                gathered = self._gathered = self._gatherer.gather(folder)
                state = self._state.read(gathered, self._gatherer.share, self._gatherer.damaged)
                view = View(make_index(gathered), [])
                text = render_page(self._config, gathered, view, self._drawings, state)
                self._page = time.monotonic(), text.encode("utf-8", "replace")
            return self._page[1]

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


class Pace:
    """The rate of a growing number, over the last WINDOW seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._name = ""
        self._seen: deque[tuple[float, float]] = deque()

    def rate(self, name: str, done: float) -> float | None:
        """Per second; None before there are two observations of the number called `name`."""
        now = self._clock()
        if name != self._name or (self._seen and done < self._seen[-1][1]):
            self._name = name
            self._seen.clear()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW:
            self._seen.popleft()
        began, before = self._seen[0]
        return (done - before) / (now - began) if now > began else None


class RunState:
    """The state of one run; the paces are measured between calls of `read`."""

    def __init__(self, experiment: ExperimentRun) -> None:
        self._experiment = experiment
        self._stage_pace, self._token_pace = Pace(), Pace()

    def read(self, gathered: Gathered, share: float, damaged: list[str]) -> Json:
        """For the page's template. `share`: how much of the trajectories was read; what is read of old ones is no pace
        of the run."""
        rows, headline, particulars, part = self._stages(gathered, share == 1.0)
        tokens = sum(tally.new_tokens for tally in gathered.tallies)
        prompt = sum(tally.prompt_tokens for tally in gathered.tallies)
        cached = sum(tally.cached_tokens for tally in gathered.tallies)
        rate = self._token_pace.rate("tokens", tokens) if share == 1.0 else None
        holder = holder_of(self._experiment.run.path / LOCK)
        return {
            "headline": headline,
            "particulars": particulars,
            "part": part,
            "stages": rows,
            "running": holder,
            "share": share,
            "damaged": damaged,
            "tokens": f"{tokens:,} new tokens in {sum(tally.total for tally in gathered.tallies):,} trajectories"
            + (f", {_pace(rate)}" if rate else "")
            + (f"; {100 * cached / prompt:.0f}% of prompt tokens came from a prefix cache." if prompt else "."),
        }

    def _stages(self, gathered: Gathered, is_complete: bool) -> tuple[list[Json], str, str, float | None]:
        """(a row for each stage, the stage under way, its pace in words, the part of it that is done).

        Done is what the ledger says, which `ratchet status` also verifies by digests. Under way is the last of the
        others that has left anything, or the first of them.
        """
        known = latest_entries(self._experiment.run)
        stages = list(stages_of(self._experiment))
        amounts = {stage.key: self._amount(gathered, stage) for stage in stages if stage.key not in known}
        current = next((key for key in reversed(amounts) if amounts[key][0]), next(iter(amounts), None))
        rows = []
        is_before = True
        for stage in stages:
            is_before &= stage.key != current
            state = "done" if stage.key in known else "now" if stage.key == current else ""
            state = state or ("not recorded" if is_before else "to do")
            note = summarize_entry(known[stage.key]) if stage.key in known else ""
            rows.append({"round": stage.round, "title": stage.title, "state": state, "note": note})
        if current is None:
            return rows, "Every stage is done", "", None
        done, total, unit = amounts[current]
        headline = f"{current.title.capitalize()}, round {current.round}"
        if not unit:
            return rows, headline, "", None
        rate = self._stage_pace.rate(f"{current} {unit}", done) if is_complete or unit == "steps" else None
        words = [f"{done:,}{f' of {total:,}' if total else ''} {unit}"]
        under_way = next(stage for stage in stages if stage.key == current)
        if (trained := self._trained(under_way)) is not None:
            words += _losses(trained)
        words += [_pace(rate)] if rate else []
        words += [f"{duration((total - done) / rate)} left"] if rate and total and total > done else []
        return rows, headline, " · ".join(words), min(1.0, done / total) if total else None

    def _amount(self, gathered: Gathered, stage: Stage) -> tuple[int, int | None, str]:
        """(done, total where it is known, what is counted) of a stage that is not finished."""
        if (trained := self._trained(stage)) is not None:
            return *read_training_steps(trained), "steps"
        section = {"sample": "sampled", "score": "sampled"}.get(stage.id, "evaluated")
        if stage.round != gathered.folder.number or stage.id in ("index", "report", "compare"):
            return 0, None, ""
        tallies = [tally for tally in gathered.tallies if tally.section == section]
        done, total = sum(tally.total for tally in tallies), sum(tally.planned for tally in tallies)
        if stage.id == "sample" or stage.id.endswith(".sample") or (done < total and stage.id != "score"):
            return done, total or None, "trajectories"
        rewarded = sum(len(tally.rewards) for tally in tallies)
        return rewarded, done or None, "rewards"

    def _trained(self, stage: Stage) -> RoundFolder | None:
        """The folder of a stage that trains."""
        folder = self._experiment.run.round(stage.round)
        trained = {"train": folder, "train.random": folder.control("random"), "train.gold": folder.control("gold")}
        return trained.get(stage.id)


def _losses(folder: RoundFolder) -> list[str]:
    """The last loss and dev loss of a training, in words."""
    log = read_training_log(folder.training / "log.jsonl")
    losses = [line.loss for line in log if line.loss is not None]
    dev_losses = [line.dev_loss for line in log if line.dev_loss is not None]
    words = [f"loss {losses[-1]:.3f}"] if losses else []
    return [*words, f"dev loss {dev_losses[-1]:.3f}"] if dev_losses else words


def _pace(rate: float) -> str:
    return f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min"
