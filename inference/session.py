"""Which trajectory a request belongs to, without every system having to say so.

`run_episode` marks what it runs; engines over several servers (inference/http/replicas.py) look here, so that all
requests of a trajectory meet the server that has its prefix in cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Place(Protocol):
    def leave(self) -> None: ...


class Session:
    """One trajectory, or one request that belongs to none."""

    def __init__(self, question: str) -> None:
        self.question = question
        """What begins alike asks the same question, such as the samples of one question."""
        self.places: dict[int, Place] = {}
        """Where it has its place, by the id of the engine that gave it."""

    def end(self) -> None:
        for place in self.places.values():
            place.leave()
        self.places.clear()


_current: ContextVar[Session | None] = ContextVar("session", default=None)


@contextmanager
def session(question: str) -> Iterator[Session]:
    """All requests from here on, also those of tasks that are started here, belong to one new session."""
    opened = Session(question)
    token = _current.set(opened)
    try:
        yield opened
    finally:
        _current.reset(token)
        opened.end()


def current_session() -> Session | None:
    return _current.get()
