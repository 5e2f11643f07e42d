"""A watched run: its index, which a thread fills, and what the server asks of it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.config import Config
from ratchet.errors import UserError
from report.stores import stored_passes
from report.watch.index import Coverage, Indexer, Stale, delete_database, open_database
from report.watch.query import Filters, find

if TYPE_CHECKING:
    from report.watch.detail import TrajectoryReader
    from report.watch.state import RunState

EVERY = 2.0
"""Seconds between two looks for what is new; a state that is younger is not read again."""


class Watcher:
    """Use as a context: the thread that fills the index runs inside."""

    def __init__(self, config: Config, arguments: tuple[str, ...], cache: Path) -> None:
        """Raises UserError where the index cannot be written."""
        self.config, self.cache = config, cache
        self._arguments = arguments
        self._stop, self._rebuild = threading.Event(), threading.Event()
        self._coverage: Coverage | None = None
        self._problem = ""
        self._state: RunState | None = None
        self._reader: TrajectoryReader | None = None
        self._guard, self._opening = threading.Lock(), threading.Lock()
        self._known: tuple[float, dict[str, Any]] | None = None
        try:
            open_database(cache).close()
        except Stale:
            delete_database(cache)
            open_database(cache).close()
        self._thread = threading.Thread(target=self._run, name="index", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with contextlib.closing(open_database(self.cache)) as database:
                    self._fill(Indexer(self.config, database))
            except (Stale, sqlite3.DatabaseError, UserError, OSError, ValueError, KeyError, TypeError) as error:
                self._problem = f"the index is being built again: {error}"
                if isinstance(error, Stale) or (
                    isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
                ):
                    delete_database(self.cache)
                self._stop.wait(EVERY)

    def _fill(self, indexer: Indexer) -> None:
        done = -1
        while not self._stop.is_set():
            if self._rebuild.is_set():
                self._rebuild.clear()
                raise Stale("a file of the run or the index was changed")
            coverage = self._coverage = indexer.step()
            self._problem = ""
            # A torn last line is never read, so the end is where nothing more is found.
            if coverage.is_complete or coverage.done == done:
                self._stop.wait(EVERY)
            done = coverage.done

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection that reads. Damage starts the index again."""
        try:
            # Without making the file: between its deletion and its first table there is nothing to read.
            address = f"{self.cache.absolute().as_uri()}?mode=rw"
            with contextlib.closing(sqlite3.connect(address, timeout=10, uri=True)) as database:
                database.execute("pragma query_only = on")
                yield database
        except sqlite3.OperationalError as error:  # locked for long, or not there yet
            raise Stale(str(error)) from error
        except (Stale, sqlite3.DatabaseError) as error:
            self._rebuild.set()
            raise Stale(str(error)) from error

    def find(self, filters: Filters) -> dict[str, Any]:
        """A page of the list, and how much of the run it is of. Raises Stale."""
        with self._database() as database:
            return {**find(database, filters), "index": self._progress()}

    def _progress(self) -> dict[str, Any]:
        coverage = self._coverage or Coverage(0, 1)
        return {"done": coverage.done, "total": coverage.total, "problem": self._problem}

    def state(self) -> dict[str, Any]:
        """The state of the run, at most EVERY seconds old. Raises Stale and UserError."""
        from report.watch.state import RunState  # late: the first page does not wait for these
        from rounds.stage import ExperimentRun

        with self._guard:
            if self._known is None or time.monotonic() - self._known[0] > EVERY:
                self._state = self._state or RunState(ExperimentRun(self.config, self._arguments))
                coverage = self._coverage
                with self._database() as database:
                    found = self._state.read(database, coverage is not None and coverage.is_complete)
                self._known = time.monotonic(), found
            return {**self._known[1], "index": self._progress()}

    def trajectory(self, key: str) -> dict[str, Any] | None:
        """One trajectory; None for an unknown key. Raises Stale and UserError."""
        from report.watch.detail import TrajectoryReader

        with self._opening:
            self._reader = self._reader or TrajectoryReader(self.config)
        passes = {one.name: one for one in stored_passes(self.config.folder)}
        with self._database() as database:
            return self._reader.read(database, passes, key)
