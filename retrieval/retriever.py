"""`Retriever`: what a caller may search, an index on this machine or a remote one."""

from __future__ import annotations

from typing import Protocol

from ratchet.core.config import IndexConfig
from ratchet.core.records import Passage


class SourceError(Exception):
    """A service cannot be reached, or keeps refusing, after all retries.

    An agent that can go on without it is told so (`agents.core.tools`); else the trajectory fails and is sampled again.
    """


class Retriever(Protocol):
    """Anything that can be searched for passages."""

    digest: str
    """Equal digest, equal results for every query."""

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        """Return the passages of ranks offset .. offset + k - 1; fewer where no more passages match."""


class NoIndex:
    """The index of a config without one: a search raises UserError."""

    digest = "no index"

    def __init__(self, config: IndexConfig) -> None:
        self._config = config

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        raise AssertionError(f"index.path is {self._config.path}")  # the section's own error comes first
