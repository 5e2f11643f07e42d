"""Which trajectory a request belongs to, without every system having to say so.

`run_episode` marks what it runs; engines over several servers (inference/http/replicas.py) look it up, so that all
requests of a trajectory meet the server that has its prefix in cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Assignment(Protocol):
    """A session's slot on a server, given back when the session ends."""

    def release(self) -> None: ...


class Session:
    """One trajectory, or one request that belongs to none."""

    def __init__(self, question: str) -> None:
        self.question = question
        """Identifies the common prefix: the samples of one question have the same value."""
        self.assignments: dict[int, Assignment] = {}
        """The server that it is assigned to, by the id of the engine that assigned it."""

    def end(self) -> None:
        for assignment in self.assignments.values():
            assignment.release()
        self.assignments.clear()


_current: ContextVar[Session | None] = ContextVar("session", default=None)


@contextmanager
def session(question: str) -> Iterator[Session]:
    """Open a session: requests inside the context, those of tasks that are started in it included, belong to it."""
    opened = Session(question)
    token = _current.set(opened)
    try:
        yield opened
    finally:
        _current.reset(token)
        opened.end()


def current_session() -> Session | None:
    """The session of the running task, or None outside of one."""
    return _current.get()
