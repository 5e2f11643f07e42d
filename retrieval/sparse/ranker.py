"""Texts against the sparse engine: how a text becomes weighted terms, and the ranker that an index searches with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ratchet.text import replace_surrogates
from retrieval.index import Ranking
from retrieval.shards import key_hash
from retrieval.sparse.analyzer import Analyzer
from retrieval.sparse.engine import Engine, SparseQuery

if TYPE_CHECKING:
    from retrieval.encoders.sparse import SparseEncoder

QueryReader = Callable[[Sequence[str]], list[SparseQuery]]
"""Turns texts into weighted terms, one query for every text."""


class SparseRanker:
    """Ranks texts with the engine; `read` turns them into weighted terms. Any number of threads may call it."""

    def __init__(self, engine: Engine, read: QueryReader, allowed: Sequence[np.ndarray] | None = None) -> None:
        """`allowed`: for every shard a uint8 per chunk, 0 for chunks that are not returned; default: all are."""
        self.engine = engine
        self.read = read
        self.allowed = allowed

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self.engine)

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """Return at most k chunks with a score above 0 for every query."""
        return self.engine.search(self.read(queries), k, self.allowed)


def word_queries(analyzer: Analyzer) -> QueryReader:
    """Return the reader for BM25: a text's terms by their hashes, weighted by how often each occurs in the text."""
    hashed = lru_cache(maxsize=1 << 16)(key_hash)

    def read(texts: Sequence[str]) -> list[SparseQuery]:
        queries = []
        for text in texts:
            # A model's output may hold half of a surrogate pair, which has no bytes to hash.
            counts = Counter(analyzer.terms(replace_surrogates(text)))
            terms = np.fromiter(map(hashed, counts), np.uint64, len(counts))
            queries.append(SparseQuery(terms, np.fromiter(counts.values(), np.float32, len(counts))))
        return queries

    return read


def encoded_queries(load: Callable[[], SparseEncoder]) -> QueryReader:
    """Return the reader for learned sparse vectors. `load` is called by each search: it must keep the encoder."""

    def read(texts: Sequence[str]) -> list[SparseQuery]:
        vectors = load().encode_queries(texts)
        weights = vectors.weights()
        return [SparseQuery(vectors.terms[low:high], weights[low:high]) for low, high in pairwise(vectors.offsets)]

    return read
