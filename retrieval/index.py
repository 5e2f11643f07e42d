"""The search index that the rest of Ratchet uses: `Index` ranks its chunks by an engine and returns them as passages.

`Store` holds the chunks, and `Ranker` is the protocol of the engines. `retrieval.open_index` opens them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ratchet.core.records import Passage, content_key, document_id
from ratchet.retrieval.shards import Shard


@dataclass(frozen=True)
class Ranking:
    """The best chunks for one query, best first; equal scores in ascending chunk number."""

    scores: np.ndarray
    """float64 [n], descending."""
    chunks: np.ndarray
    """int64 [n], chunk numbers in the Store."""

    def __len__(self) -> int:
        return len(self.chunks)

    @staticmethod
    def empty() -> Ranking:
        """The ranking of a query that matches nothing."""
        return Ranking(np.empty(0), np.empty(0, np.int64))


class Ranker(Protocol):
    """An engine that ranks the chunks of a Store by number; it does not read their texts."""

    def __len__(self) -> int:
        """Return the number of chunks."""
        ...

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """Return at most k chunks for every query."""
        ...


class Store:
    """The chunks of an index with their ids and titles, memory-mapped; every engine refers to them by number."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = tuple(shards)
        self._first_chunks = [shard.first_chunk for shard in shards]

    @property
    def digest(self) -> str:
        """Equal digest, equal chunks under equal numbers."""
        names = ("document_ids.utf8", "document_ids.offsets", "texts.utf8", "chunk_spans", "document_chunks")
        return content_key([[shard.manifest.files[name].sha256 for name in names] for shard in self.shards])

    def __len__(self) -> int:
        """Return the number of chunks."""
        return self.shards[-1].first_chunk + len(self.shards[-1]) if self.shards else 0

    def passage(self, chunk: int, score: float) -> Passage:
        """Read one chunk as a passage with this score."""
        shard = self._shard_of(chunk)
        return shard.passage(chunk - shard.first_chunk, score)

    def chunk_texts(self, first: int, last: int) -> Iterator[str]:
        """Yield the indexed text of chunks first .. last - 1."""
        while first < last:
            shard = self._shard_of(first)
            end = min(last, shard.first_chunk + len(shard))
            yield from shard.chunk_texts(first - shard.first_chunk, end - shard.first_chunk)
            first = end

    def _shard_of(self, chunk: int) -> Shard:
        return self.shards[bisect_right(self._first_chunks, chunk) - 1]

    def document_numbers(self, ids: Collection[str]) -> np.ndarray:
        """Return the numbers of those of these documents that are in the index: int64, ascending."""
        wanted = list(dict.fromkeys(map(document_id, ids)))
        parts = [shard.first_document + shard.find_documents(wanted) for shard in self.shards]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def chunks_of(self, document: str) -> range:
        """Return the numbers of a document's chunks; an empty range if it is not in the index."""
        for number in self.document_numbers([document]):
            shard = self.shards[bisect_right([shard.first_document for shard in self.shards], number) - 1]
            place = int(number) - shard.first_document
            first, last = (shard.first_chunk + int(at) for at in shard.document_chunks[place : place + 2])
            return range(first, last)
        return range(0)


class Index:
    """Chunks and an engine that ranks them; any number of threads may search it at once."""

    def __init__(self, store: Store, ranker: Ranker, digest: str) -> None:
        """`ranker` ranks the chunks of `store`; `digest` is as for `Retriever`."""
        self.store = store
        self.ranker = ranker
        self.digest = digest

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self.store)

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        """Return the passages of ranks offset .. offset + k - 1, by score, equal scores by chunk number.

        Chunks that share no term with the query are not returned. Sparse and dense engines are exact at any depth:
        search(q, k, offset) == search(q, offset + k)[offset:]. Raises ValueError for a negative k or offset.
        """
        return self.search_batch([query], k, offset)[0]

    def search_batch(self, queries: Sequence[str], k: int, offset: int = 0) -> list[list[Passage]]:
        """Return `search` of every query, computed on all cores."""
        if k < 0 or offset < 0:
            raise ValueError(f"k and offset must not be negative, got k={k}, offset={offset}")
        if k == 0 or not queries:
            return [[] for _ in queries]
        return [
            [
                self.store.passage(int(chunk), float(score))
                for score, chunk in zip(ranking.scores[offset:], ranking.chunks[offset:], strict=True)
            ]
            for ranking in self.ranker.rank(queries, offset + k)
        ]
