"""From texts to posting lists: a query's terms and weights, in one order, and each term's region in a shard.

From text to index terms: the same ones for documents and queries, or nothing would match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import Stemmer

from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.numba_cache import njit
from ratchet.core.text import replace_surrogates
from ratchet.core.words import content_terms, split_words
from ratchet.retrieval.arrays import Doubles, Floats, Hashes, Numbers, Words
from ratchet.retrieval.index import NOT_THERE, key_hash
from ratchet.retrieval.sparse.postings import BLOCKS

if TYPE_CHECKING:
    from ratchet.retrieval.encoders.sparse import SparseEncoder


class Analyzer:
    """Splits text into words as core/words.py says, and stems them where asked for. Every word of a document is
    indexed; stop words are left out of queries alone.

    `stemmer` is the name of a Snowball algorithm; an unknown one is a UserError. `stop_words` are folded words.
    """

    def __init__(self, stemmer: str | None, stop_words: Set[str] = frozenset()) -> None:
        if stemmer is not None and stemmer not in Stemmer.algorithms():
            raise UserError(
                f"index.stemmer: there is no stemmer {stemmer!r}{did_you_mean(stemmer, Stemmer.algorithms())}; "
                "null turns stemming off"
            )
        # Its own cache is off (0): callers keep one, and without it a call is one step that threads cannot interleave.
        self._stemmer = Stemmer.Stemmer(stemmer, 0) if stemmer else None
        self._stop_words = stop_words
        self._cached_term = lru_cache(maxsize=1 << 16)(self.term)

    def term(self, word: str) -> str:
        return str(self._stemmer.stemWord(word)) if self._stemmer else word

    def terms(self, text: str) -> list[str]:
        """Return the index terms of a document's text in order, repeats included."""
        return list(map(self._cached_term, split_words(text)))

    def query_terms(self, query: str) -> list[str]:
        return self.terms(" ".join(content_terms(query, self._stop_words)) if self._stop_words else query)


LARGEST_WEIGHT = float(np.finfo(np.float32).max)
# Distances of a Shell sort (Ciura 2001). It takes Numba a second to compile its own sort.
GAPS = (701, 301, 132, 57, 23, 10, 4, 1)


@dataclass(frozen=True)
class SparseQuery:
    """Terms with weights: score of a chunk = sum over terms of weight times the term's weight in the chunk."""

    terms: Hashes | Numbers
    """BM25: uint64 hashes of the terms (`shards.key_hash`); learned sparse: their vocabulary numbers."""
    weights: Floats
    """[terms]. Terms that come twice count as the sum of their weights."""


QueryReader = Callable[[Sequence[str]], list[SparseQuery]]
"""Turns texts into weighted terms, one query for every text."""


def word_queries(analyzer: Analyzer) -> QueryReader:
    """Return the reader for BM25: a text's terms by their hashes, weighted by how often each occurs in the text."""
    hashed = lru_cache(maxsize=1 << 16)(key_hash)

    def read(texts: Sequence[str]) -> list[SparseQuery]:
        queries = []
        for text in texts:
            # A model's output may hold half of a surrogate pair, which has no bytes to hash.
            counts = Counter(analyzer.query_terms(replace_surrogates(text)))
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


@njit(nogil=True, cache=True)
def merge_terms(offsets: Numbers, keys: Hashes, weights: Doubles) -> int:
    """Sort every query's terms and add up the weights of those that come twice, in place.

    Returns the largest number of different terms in a query, and -1 where a weight is no number. Terms are in their
    order, and the weights of one that comes twice in that of their sizes: in whatever order a query has them, they get
    the same scores to the last bit.
    """
    kept = start = largest = 0
    for q in range(len(offsets) - 1):
        end, first = offsets[q + 1], kept
        for gap in GAPS:
            for i in range(start + gap, end):
                key, weight, at = keys[i], weights[i], i
                while at >= start + gap and (
                    keys[at - gap] > key or (keys[at - gap] == key and weights[at - gap] > weight)
                ):
                    keys[at], weights[at] = keys[at - gap], weights[at - gap]
                    at -= gap
                keys[at], weights[at] = key, weight
        for i in range(start, end):
            if not abs(weights[i]) <= LARGEST_WEIGHT:
                return -1
            if kept > first and keys[i] == keys[kept - 1]:
                weights[kept - 1] += weights[i]
            else:
                keys[kept], weights[kept] = keys[i], weights[i]
                kept += 1
        start, offsets[q + 1] = end, kept
        largest = max(largest, kept - first)
    return largest


@njit(nogil=True, cache=True)
def locate_lists(
    hashes: Hashes, regions: Words, end: int, keys: Hashes, terms: Numbers, begins: Numbers, ends: Numbers
) -> None:
    """For term keys: their numbers and regions in one shard, as words begins[i] .. ends[i] - 1; -1, -1 where absent.

    Without hashes keys are numbers. `end` is the posting file's.
    """
    for i in range(len(keys)):
        term = np.int64(keys[i])
        if len(hashes) > 0:
            low, high = 0, len(hashes)
            while low < high:
                middle = (low + high) >> 1
                if hashes[middle] < keys[i]:
                    low = middle + 1
                else:
                    high = middle
            term = np.int64(low if low < len(hashes) and hashes[low] == keys[i] else -1)
        terms[i], begins[i], ends[i] = term, -1, -1
        if 0 <= term < len(regions) and regions[term] != NOT_THERE:
            after = term + 1
            while after < len(regions) and regions[after] == NOT_THERE:
                after += 1
            begins[i] = regions[term]
            ends[i] = regions[after] if after < len(regions) else end


@njit(nogil=True, cache=True)
def count_postings(words: Words, begins: Numbers, sizes: Numbers) -> None:
    """Add every list's number of postings to sizes."""
    for i in range(len(begins)):
        if begins[i] >= 0:
            head = words[begins[i]]
            sizes[i] += words[begins[i] + 1] if head >= BLOCKS else head
