"""`Retriever`: what a caller may search, an index on this machine or a remote one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ratchet.core.config import IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Passage


class SourceError(Exception):
    """A service cannot be reached, or keeps refusing, after all retries.

    An agent that can go on without it is told so (`agents.core.tools`); else the trajectory fails and is sampled again.
    """


class SearchError(UserError, SourceError):
    """A server that is there did not answer as it should: a trajectory fails, another command ends."""


class Retriever(Protocol):
    """Anything that can be searched for passages."""

    digest: str
    """Equal digest, equal results for every query."""

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        """Return the passages of ranks offset .. offset + k - 1; fewer where no more passages match."""


def check_range(k: int, offset: int) -> None:
    """Raises ValueError for a negative k or offset of a search."""
    if k < 0 or offset < 0:
        raise ValueError(f"k and offset must not be negative, got k={k}, offset={offset}")


class BatchSearch:
    """A Retriever that computes many queries together, by `_search`, which gets a k above 0 and some queries."""

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        """Return the passages of ranks offset .. offset + k - 1. Raises ValueError for a negative k or offset."""
        return self.search_batch([query], k, offset)[0]

    def search_batch(self, queries: Sequence[str], k: int, offset: int = 0) -> list[list[Passage]]:
        """Return `search` of every query."""
        check_range(k, offset)
        return self._search(queries, k, offset) if k and queries else [[] for _ in queries]

    def _search(self, queries: Sequence[str], k: int, offset: int) -> list[list[Passage]]:
        raise NotImplementedError


def search_batch(retriever: Retriever, queries: Sequence[str], k: int) -> list[list[Passage]]:
    """Return the best k passages for every query, computed together where the retriever can do that."""
    if isinstance(retriever, BatchSearch):
        return retriever.search_batch(queries, k)
    return [retriever.search(query, k) for query in queries]


class NoIndex:
    """The index of a config without one: a search raises UserError."""

    digest = "no index"

    def __init__(self, config: IndexConfig) -> None:
        self._config = config

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        raise AssertionError(f"index.path is {self._config.path}")  # the section's own error comes first
