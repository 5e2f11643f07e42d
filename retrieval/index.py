"""What the rest of Ratchet sees of retrieval: a Retriever, and the index on disk that is one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ratchet.errors import UserError
from ratchet.records import Passage
from retrieval.ranker import Ranker, Ranking
from retrieval.sparse.rankers import SparseRanker
from retrieval.store import Store


class Retriever(Protocol):
    digest: str
    """Equal digest, equal results for every query."""

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        """Ranks offset .. offset + k - 1 for a query, fewer where no more passages match."""
        ...

    def search_batch(self, queries: Sequence[str], k: int, offset: int = 0) -> list[list[Passage]]:
        """The same for every query."""
        ...


class Index:
    """Chunks and an engine that ranks them; any number of threads may search it at once."""

    def __init__(self, store: Store, ranker: Ranker, digest: str) -> None:
        self.store = store
        self.ranker = ranker
        self.digest = digest

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self.store)

    def search(self, query: str, k: int, offset: int = 0, documents: Collection[str] | None = None) -> list[Passage]:
        """Ranks offset .. offset + k - 1: by score, ties by chunk order, chunks that share no term left out.

        Exact at any depth: search(q, k, offset) == search(q, offset + k)[offset:]. `documents`: only passages of these.
        """
        return self.search_batch([query], k, offset, documents)[0]

    def search_batch(
        self, queries: Sequence[str], k: int, offset: int = 0, documents: Collection[str] | None = None
    ) -> list[list[Passage]]:
        """`search` for every query, on all cores."""
        if k < 0 or offset < 0:
            raise ValueError(f"k and offset must not be negative, got k={k}, offset={offset}")
        if k == 0 or not queries:
            return [[] for _ in queries]
        return [
            [
                self.store.passage(int(chunk), float(score))
                for score, chunk in zip(ranking.scores[offset:], ranking.chunks[offset:], strict=True)
            ]
            for ranking in self._rank(queries, offset + k, documents)
        ]

    def _rank(self, queries: Sequence[str], k: int, documents: Collection[str] | None) -> list[Ranking]:
        allowed = self.store.allowed(documents)
        if allowed is None:
            return self.ranker.rank(queries, k)
        if isinstance(self.ranker, SparseRanker):
            return self.ranker.rank(queries, k, allowed)
        raise UserError(
            "this index's engine cannot leave out documents: `documents` and removed documents need engine: ratchet "
            "and kind: bm25 or sparse"
        )
