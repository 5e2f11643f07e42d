"""An index over a run's trajectories: where each line lies, and the few fields that a list shows and filters by.

It is a SQLite file in a cache folder, never in the run folder, and is filled from where it stopped: the segments of a
store are append-only (`ratchet/files.py`), so of each file only what was added is read. A file that shrank or was
replaced, a database that is damaged and one of another version start the index again.

Of several records of one key the index holds the one that counts (`sampling/store.py`): the first in the order of
the segments, and a failed one only where no other try of its key went better.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from questions.load import load_questions
from ratchet.config import Config
from ratchet.errors import UserError
from report.stores import StoredPass, read_json, stored_passes
from rewards.store import score_file

VERSION = 1
"""Of the tables below."""
BATCH_SECONDS = 0.25
"""How long one transaction reads: what it found is on the page after it."""
MAX_ANSWER = 300
"""Characters of an answer in the list."""

TABLES = """
create table source (path text primary key, inode integer, done integer, lines integer);
create table store (
    name text primary key, title text, split text, planned integer, manifest integer, selection integer
);
create table trajectory (
    id integer primary key autoincrement, store text, key text, path text, start integer, length integer, question text,
    sample integer, status text, answer text, has_answer integer, roles text, calls integer, prompt_tokens integer,
    cached_tokens integer, new_tokens integer, malformed integer, seconds real, planned integer, kept integer,
    reward real, unique (store, key)
);
create index by_store on trajectory (store, planned, status, reward, kept);
create index by_key on trajectory (key);
create index by_question on trajectory (store, question);
create table choice (store text, key text, reward real, kept integer, primary key (store, key)) without rowid;
create table scored (store text, name text, path text, primary key (store, name)) without rowid;
create table chosen (store text, question text, record text, primary key (store, question)) without rowid;
create table score (
    store text, key text, name text, value real, start integer, length integer, primary key (store, key, name)
) without rowid;
create table question (split text, id text, text text, kind text, record text, primary key (split, id)) without rowid;
create table role (name text primary key) without rowid;
create table damaged (path text, line integer, problem text, primary key (path, line)) without rowid;
create virtual table words using fts5 (text, content='', columnsize=0, detail=none);
"""


class Stale(Exception):
    """The index does not fit the run folder any more, or is damaged: it has to be built again."""


def cache_file(run: Path, folder: Path | None = None) -> Path:
    """The index of a run folder on this machine. Machines that share a home folder do not share the file: SQLite's
    log of changes works on one machine only."""
    place = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ratchet" / "watch"
    digest = hashlib.sha256(f"{platform.node()}\0{run.resolve()}".encode()).hexdigest()[:16]
    return place / f"{run.resolve().name}-{digest}.sqlite"


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to an index, which is made where it is not there. Raises Stale and UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path, timeout=30, isolation_level=None)
    except (OSError, sqlite3.OperationalError) as error:
        raise UserError(f"{path}: cannot write the index ({error}); name another folder with --cache") from error
    try:
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = off")  # what a crash of the machine damages is built again
        with transaction(database):
            [[version]] = database.execute("pragma user_version")
            if version == 0:
                for statement in TABLES.strip().split(";\n"):
                    database.execute(statement)
                database.execute(f"pragma user_version = {VERSION}")
            elif version != VERSION:
                raise Stale(f"it is of version {version}")
    except sqlite3.OperationalError as error:
        database.close()
        raise UserError(f"{path}: cannot write the index ({error}); name another folder with --cache") from error
    except (sqlite3.DatabaseError, Stale) as error:
        database.close()
        raise Stale(str(error)) from error
    return database


def delete_database(path: Path) -> None:
    """Remove an index with SQLite's files beside it."""
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(name).unlink()


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """One change, which another process that watches the same run waits for."""
    database.execute("begin immediate")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.DatabaseError):  # a damaged one has nothing to go back to
            database.execute("rollback")
        raise
    database.execute("commit")


@dataclass(frozen=True)
class Coverage:
    """How much of the run's trajectories the index holds."""

    done: int
    """Bytes."""
    total: int

    @property
    def is_complete(self) -> bool:
        return self.done >= self.total


class Indexer:
    """Fills the index of one run; one thread calls `step` again and again."""

    def __init__(self, config: Config, database: sqlite3.Connection) -> None:
        self._config, self._database = config, database
        self._questions: dict[str, int] = {}
        self._planned: dict[str, tuple[int, set[str] | None]] = {}
        self._weights = {str(name): weight for name, weight in config.rewards.weights.items() if weight}
        self.coverage: Coverage | None = None

    def step(self) -> Coverage:
        """Read for about BATCH_SECONDS what is new. Raises Stale and sqlite3.DatabaseError."""
        passes = stored_passes(self._config.folder)
        sizes = {path: path.stat() for one in passes for path in one.store.segments}
        with transaction(self._database):
            for one in passes:
                self._plan(one)
            deadline = time.monotonic() + BATCH_SECONDS
            for one in passes:
                for path in one.store.segments:
                    if path in sizes and time.monotonic() < deadline:
                        self._read(one, path, sizes[path], deadline)
        done = dict(self._database.execute("select path, done from source"))
        # A torn last line is never read: what is complete is measured after the reading.
        self.coverage = Coverage(
            sum(done.get(str(path), 0) for path in sizes), sum(status.st_size for status in sizes.values())
        )
        with transaction(self._database):
            for one in passes:
                self._load_questions(one.split)
                self._score(one)
                self._select(one)
        return self.coverage

    def _plan(self, one: StoredPass) -> None:
        """What is planned to be in a store, where its manifest is new; without a manifest, everything counts."""
        stamp = _stamp(one.store.manifest_path)
        if self._planned.get(one.name, (None, None))[0] == stamp:
            return
        keys = set((read_json(one.store.manifest_path) or {}).get("keys", ())) if stamp else None
        self._planned[one.name] = stamp, keys
        known = self._database.execute("select manifest from store where name = ?", (one.name,)).fetchone()
        self._database.execute(
            "insert into store values (?, ?, ?, ?, ?, 0) on conflict do update set title = excluded.title, "
            "planned = excluded.planned, manifest = excluded.manifest",
            (one.name, one.title, one.split, len(keys or ()), stamp),
        )
        if known is not None and known[0] != stamp:
            rows = self._database.execute("select id, key from trajectory where store = ?", (one.name,)).fetchall()
            self._database.executemany(
                "update trajectory set planned = ? where id = ?",
                ((keys is None or key in keys, number) for number, key in rows),
            )

    def _read(self, one: StoredPass, path: Path, status: os.stat_result, deadline: float) -> None:
        """The complete lines of a segment that are new, until the deadline."""
        for number, start, line in self._new_lines(path, status, deadline):
            try:
                self._add(one, path, start, line)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                problem = f"{type(error).__name__}: {error}"[:200]
                self._database.execute("insert or replace into damaged values (?, ?, ?)", (str(path), number, problem))

    def _new_lines(
        self, path: Path, status: os.stat_result, deadline: float = float("inf")
    ) -> Iterator[tuple[int, int, bytes]]:
        """(number, position, line) of the complete lines after those that were read; then they count as read."""
        known = self._database.execute("select inode, done, lines from source where path = ?", (str(path),)).fetchone()
        inode, done, lines = known or (status.st_ino, 0, 0)
        if status.st_ino != inode or status.st_size < done:
            raise Stale(f"{path} was replaced")
        if status.st_size == done:
            return
        with path.open("rb") as file:
            file.seek(done)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                lines += 1
                yield lines, done, line
                done += len(line)
                if time.monotonic() > deadline:
                    break
        row = (str(path), status.st_ino, done, lines)
        self._database.execute("insert or replace into source values (?, ?, ?, ?)", row)

    def _add(self, one: StoredPass, path: Path, start: int, line: bytes) -> None:
        found = from_json(line)
        key, status = str(found["key"]), str(found["status"])
        planned = self._planned[one.name][1]
        calls = [event for event in found["events"] if event["kind"] == "model"]
        roles = sorted({str(event["role"]) for event in found["events"]})
        row = (
            one.name, key, str(path), start, len(line), str(found["question_id"]), int(found["sample"]), status,
            found["answer"][:MAX_ANSWER], bool(found["answer"].strip()), "".join(f"\n{role}\n" for role in roles),
            len(calls), sum(call["prompt_tokens"] for call in calls),
            sum(call.get("cached_tokens", 0) for call in calls), sum(call["new_tokens"] for call in calls),
            sum(call["parse"] == "malformed" for call in calls), float(found.get("seconds", 0.0)),
            planned is None or key in planned,
        )  # fmt: skip
        words = _words(found)
        known = self._database.execute(
            "select id, status = 'failed', path, start from trajectory where store = ? and key = ?", (one.name, key)
        ).fetchone()
        if known is not None:
            if known[1:] <= (status == "failed", str(path), start):
                return
            # The words of a table without content cannot be deleted; no row will have their id again.
            self._database.execute("delete from trajectory where id = ?", (known[0],))
        number = self._database.execute(
            f"insert into trajectory values (null, {', '.join('?' * len(row))}, 0, null)", row
        ).lastrowid
        self._database.execute("insert into words (rowid, text) values (?, ?)", (number, words))
        self._database.executemany("insert or ignore into role values (?)", ((role,) for role in roles))
        self._settle(one.name, [key])

    def _load_questions(self, split: str) -> None:
        """The texts and kinds of a question set; where its file is not there, the list shows ids."""
        sets = {name: getattr(self._config.questions, name) for name in ("train", "dev", "test")}
        given = (sets | self._config.evaluation.benchmarks).get(split)
        stamp = _stamp(Path(given.path)) if given is not None and given.path else 0
        if given is None or self._questions.get(split) == stamp:
            return
        self._questions[split] = stamp
        with contextlib.suppress(UserError):
            found = load_questions(given, self._config.seed)
            rows = ((split, q.id, q.text, q.kind, q.model_dump_json()) for q in found)
            self._database.executemany("insert or replace into question values (?, ?, ?, ?, ?)", rows)

    def _score(self, one: StoredPass) -> None:
        """The scores under current settings that are new."""
        for name, settings in (read_json(one.scores / "settings.json") or {}).items():
            path = score_file(one.scores, name, settings)
            place = (one.name, name)
            known = self._database.execute("select path from scored where store = ? and name = ?", place).fetchone()
            if known is None or known[0] != str(path):
                self._database.execute("delete from score where store = ? and name = ?", place)
                self._database.execute("delete from source where path = ?", (str(path),))
                self._database.execute("insert or replace into scored values (?, ?, ?)", (*place, str(path)))
            if not path.exists():
                continue
            changed = []
            for _, start, line in self._new_lines(path, path.stat()):
                score = from_json(line)
                row = (one.name, score["trajectory"], name, score["value"], start, len(line))
                self._database.execute("insert or replace into score values (?, ?, ?, ?, ?, ?)", row)
                changed.append(score["trajectory"])
            self._settle(one.name, changed)

    def _select(self, one: StoredPass) -> None:
        """What a selection kept, and the rewards that it was made with, where it is new."""
        stamp = _stamp(one.selection) if one.selection else 0
        [known] = self._database.execute("select selection from store where name = ?", (one.name,)).fetchone()
        if one.selection is None or known == stamp:
            return
        before = [key for (key,) in self._database.execute("select key from choice where store = ?", (one.name,))]
        for table in ("choice", "chosen"):
            self._database.execute(f"delete from {table} where store = ?", (one.name,))
        for choice in (read_json(one.selection) or {}).get("questions", ()):
            kept = set(choice["kept"])
            rows = ((one.name, key, reward, key in kept) for key, reward in choice["rewards"].items())
            self._database.executemany("insert or replace into choice values (?, ?, ?, ?)", rows)
            record = (one.name, choice["question_id"], json.dumps(choice))
            self._database.execute("insert or replace into chosen values (?, ?, ?)", record)
        self._database.execute("update store set selection = ? where name = ?", (stamp, one.name))
        now = [key for (key,) in self._database.execute("select key from choice where store = ?", (one.name,))]
        self._settle(one.name, {*before, *now})

    def _settle(self, store: str, keys: Iterable[str]) -> None:
        """Set reward and kept of trajectories, from the selection or, before there is one, from their scores."""
        for key in keys:
            place = (store, key)
            choice = self._database.execute(
                "select reward, kept from choice where store = ? and key = ?", place
            ).fetchone() or (self._reward(store, key), 0)
            self._database.execute(
                "update trajectory set reward = ?, kept = ? where store = ? and key = ?", (*choice, *place)
            )

    def _reward(self, store: str, key: str) -> float | None:
        """The reward that selection would use (`rewards.selection`): None until it has every score."""
        place = (store, key)
        found = dict(self._database.execute("select name, value from score where store = ? and key = ?", place))
        values = [found.get(name) for name in self._weights]
        row = self._database.execute("select status, has_answer from trajectory where store = ? and key = ?", place)
        status, has_answer = row.fetchone() or ("failed", 0)
        if status == "failed" or not self._weights.keys() <= found.keys() or all(value is None for value in values):
            return None
        if not has_answer or status not in self._config.rewards.select.keep_status:
            return 0.0
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return sum(w * v for w, v in zip(self._weights.values(), known, strict=True)) / sum(self._weights.values())


def _words(found: dict[str, Any]) -> str:
    """What a search looks through: the answer, and everything that models, searches and tools said."""
    parts: list[Any] = [
        found["question_id"],
        found["key"],
        found["answer"],
        found.get("explanation"),
        found.get("error"),
    ]
    for event in found["events"]:
        parts += (event.get("text"), event.get("query"), event.get("error"), *event.get("entities", ()))
    return "\n".join(part for part in parts if isinstance(part, str) and part)


def _stamp(path: Path) -> int:
    """What changes when a file is written; 0 where there is none."""
    try:
        status = path.stat()
    except OSError:
        return 0
    return status.st_mtime_ns ^ status.st_size
