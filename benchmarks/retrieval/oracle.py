"""Brute force: every posting of a query added up in float64, in ascending term order, and everything ranked.

It shares no code with the engine: its results are what the engines' are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.retrieval.corpus import Columns, Query
from ratchet.retrieval.index import Ranking

# How far a float32 engine's scores may be off, relative.
FLOAT32 = 1e-5
FLOAT64 = 1e-12


class Oracle:
    """Scores queries against every document, and judges the rankings of engines by these scores."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._idf = columns.idf()
        self._weights = columns.weights(np.float64, with_idf=False)

    def scores(self, query: Query) -> np.ndarray:
        """float64 [documents]."""
        scores = np.zeros(self._columns.documents)
        factors = query.weights.astype(np.float64) * self._idf[query.terms]
        for term, factor in zip(query.terms.tolist(), factors, strict=True):
            postings = slice(*self._columns.offsets[term : term + 2])
            scores[self._columns.chunks[postings]] += factor * self._weights[postings]  # a list has a document once
        return scores

    def judge(self, found: Sequence[Ranking], queries: Sequence[Query], k: int) -> str:
        """How exact an engine's rankings are, the worst of all queries.

        bits       the same documents in the same order, the same scores to the last bit of a float64
        float64    the same documents, scores within 1e-12
        float32    at every rank a document whose true score is that rank's true score, within 1e-5
        0.87 ids   neither: mean share of the true top k that was found
        """
        verdicts = [_verdict(ranking, self.scores(query), k) for ranking, query in zip(found, queries, strict=True)]
        overlap = float(np.mean([share for _, share in verdicts]))
        worst = max(level for level, _ in verdicts)
        return ("bits", "float64", "float32", f"{overlap:.2f} ids")[worst]


def top(scores: np.ndarray, k: int) -> Ranking:
    """The k best scores above 0; equal ones by document number."""
    positive = np.flatnonzero(scores > 0)
    if len(positive) > k:
        edge = np.partition(scores[positive], len(positive) - k)[len(positive) - k]
        positive = positive[scores[positive] >= edge]
    order = np.lexsort((positive, -scores[positive]))[:k]
    return Ranking(scores[positive[order]], positive[order])


def _verdict(found: Ranking, scores: np.ndarray, k: int) -> tuple[int, float]:
    truth = top(scores, k)
    share = len(np.intersect1d(found.chunks, truth.chunks)) / max(len(truth), 1)
    if len(found) != len(truth):
        return 3, share
    if np.array_equal(found.chunks, truth.chunks):
        if np.array_equal(found.scores, truth.scores):
            return 0, share
        if np.allclose(found.scores, truth.scores, rtol=FLOAT64, atol=0):
            return 1, share
    # In float32 close neighbours may change places; nothing else may.
    placed = np.allclose(scores[found.chunks], truth.scores, rtol=FLOAT32, atol=0)
    scored = np.allclose(found.scores, truth.scores, rtol=FLOAT32, atol=0)
    return (2 if placed and scored and len(set(found.chunks.tolist())) == len(found) else 3), share
