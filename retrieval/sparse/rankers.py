"""Rankers on our own engine: what a query's terms and weights are, by BM25's words or by a learned sparse encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from retrieval.ranker import Ranking
from retrieval.sparse.analyzer import Words
from retrieval.sparse.engine import Engine, SparseQuery
from retrieval.sparse.hashing import key_hash

if TYPE_CHECKING:
    from retrieval.encoders.sparse import SparseEncoder


class QueryReader(Protocol):
    def __call__(self, texts: Sequence[str]) -> list[SparseQuery]: ...


class SparseRanker:
    """Ranks texts with the engine; `read` makes queries of them."""

    def __init__(self, engine: Engine, read: QueryReader) -> None:
        self.engine = engine
        self.read = read

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self.engine)

    def rank(self, queries: Sequence[str], k: int, allowed: Sequence[np.ndarray] | None = None) -> list[Ranking]:
        return self.engine.search(self.read(queries), k, allowed)


def word_queries(words: Words) -> QueryReader:
    """A text's terms, each with the number of times that it comes."""
    hashed = lru_cache(maxsize=1 << 16)(key_hash)

    def read(texts: Sequence[str]) -> list[SparseQuery]:
        queries = []
        for text in texts:
            # A model's output may hold half of a surrogate pair, which has no bytes to hash.
            counts = Counter(words.terms(text.encode(errors="replace").decode()))
            terms = np.fromiter(map(hashed, counts), np.uint64, len(counts))
            queries.append(SparseQuery(terms, np.fromiter(counts.values(), np.float32, len(counts))))
        return queries

    return read


def encoded_queries(load: Callable[[], SparseEncoder]) -> QueryReader:
    """A text's vector. The encoder is loaded with the first query: opening an index stays quick."""

    def read(texts: Sequence[str]) -> list[SparseQuery]:
        vectors = load().encode_queries(texts)
        weights = vectors.weights()
        spans = zip(vectors.offsets, vectors.offsets[1:], strict=False)
        return [SparseQuery(vectors.terms[low:high], weights[low:high]) for low, high in spans]

    return read
