"""Synthetic corpora: sparse vectors with the statistics of real text, seeded, in seconds.

Two kinds of vectors, both with values in uint16:

    bm25       term frequencies; a posting weighs idf * tf / (tf + k1 * (1 - b + b * length / mean length))
    learned    bit patterns of bfloat16 logits, as Lion and SPLADE emit them; a posting weighs log(1 + logit)

Where the statistics come from: DataMorgana's corpus and dev questions, English stems without stop words, cut every 260
terms. A chunk has 218 terms, 140 of them different; the shares of chunks that hold the 1st, 10th, 100th and 1000th term
are 0.57, 0.30, 0.14 and 0.03; SHARES says how common the terms are that people ask for. Words of a synthetic document
are drawn independently, but for repeats: real ones cluster by topic, which makes real scores more uneven than these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit

Kind = Literal["bm25", "learned"]
# Fixed in tantivy, so every engine's speed is measured with them.
K1, B = 1.2, 0.75

# Shares of chunks that hold a question's term (known terms of DataMorgana's dev questions), at these quantiles.
QUANTILES = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 1.0)
SHARES = (0.00002, 0.0002, 0.0007, 0.0026, 0.0127, 0.0458, 0.1018, 0.1796, 0.2538, 0.3183, 0.45)


@dataclass(frozen=True)
class Rows:
    """Sparse vectors document by document (CSR)."""

    kind: Kind
    vocabulary: int
    offsets: np.ndarray
    """int64 [documents + 1]."""
    terms: np.ndarray
    """int32 [postings], ascending in each document."""
    values: np.ndarray
    """uint16 [postings], see the top of this file."""

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1

    @property
    def postings(self) -> int:
        return len(self.terms)


@dataclass(frozen=True)
class Columns:
    """The same, term by term (CSC): what an inverted index holds."""

    kind: Kind
    documents: int
    offsets: np.ndarray
    """int64 [vocabulary + 1]."""
    chunks: np.ndarray
    """int32 [postings], documents, ascending in each term."""
    values: np.ndarray
    lengths: np.ndarray
    """int64 [documents]: terms of a document, repeats counted; empty for learned vectors."""

    @property
    def vocabulary(self) -> int:
        return len(self.offsets) - 1

    @property
    def postings(self) -> int:
        return len(self.chunks)

    def idf(self) -> np.ndarray:
        """float64 [vocabulary]: log(1 + (N - df + 0.5) / (df + 0.5)), Lucene's; 1 for learned vectors."""
        if self.kind == "learned":
            return np.ones(self.vocabulary)
        found = np.diff(self.offsets)
        return np.log1p((self.documents - found + 0.5) / (found + 0.5))

    def norms(self) -> np.ndarray:
        """float64 [documents]: what BM25 adds to a term frequency in the denominator."""
        mean = self.lengths.mean() if len(self.lengths) else 1.0
        return np.asarray(K1 * (1 - B + B * (self.lengths / (mean or 1.0))))

    def weights(self, dtype: type = np.float32, with_idf: bool = True) -> np.ndarray:
        """[postings]: the weights of the postings, BM25's times their idf where asked for."""
        if self.kind == "learned":
            return value_table().astype(dtype)[self.values]
        out: np.ndarray = np.empty(self.postings, dtype)
        idf = self.idf() if with_idf else np.ones(self.vocabulary)
        _bm25_weights(self.offsets, self.chunks, self.values, idf, self.norms(), out)
        return out


@dataclass(frozen=True)
class Query:
    """Weighted terms to search for."""

    terms: np.ndarray
    """int64 [n], ascending; a term that comes twice counts twice."""
    weights: np.ndarray
    """float32 [n]."""


def value_table() -> np.ndarray:
    """float32 [2^16]: log(1 + logit) for every positive, finite bfloat16; 0 for the other bit patterns."""
    logits = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    usable = np.isfinite(logits) & (logits > 0)
    return np.where(usable, np.log1p(np.where(usable, logits, 0).astype(np.float64)), 0).astype(np.float32)


def bm25_rows(documents: int, vocabulary: int, seed: int, mean_length: float = 251.0) -> Rows:
    """Documents of Zipf-Mandelbrot words, p(rank) ~ 1 / (rank + 27); about 161 different terms in each at the default.

    Lengths are log-normal (sigma 0.45, at least 8, at most 2,000). A word repeats an earlier one of its document with
    a chance of 0.32 (Simon's process), because words come in bursts. Term numbers are shuffled ranks.
    """
    draw = np.random.default_rng(seed)
    sigma = 0.45
    lengths = draw.lognormal(np.log(mean_length) - sigma**2 / 2, sigma, documents)
    lengths = np.clip(np.rint(lengths), 8, 2000).astype(np.int64)
    numbers = draw.permutation(vocabulary).astype(np.int32)
    size = int(lengths.sum())
    terms, values = np.empty(size, np.int32), np.empty(size, np.uint16)
    offsets = np.zeros(documents + 1, np.int64)
    found = _draw_documents(lengths, numbers, 27.0, 0.32, seed, offsets, terms, values)
    return Rows("bm25", vocabulary, offsets, terms[:found].copy(), values[:found].copy())


def learned_rows(rows: Rows, seed: int) -> Rows:
    """The same postings with learned values: logits are log-normal (sigma 0.9), so weights lie around 0.7, up to 4."""
    return Rows("learned", rows.vocabulary, rows.offsets, rows.terms, bfloat16_logits(rows.postings, seed))


def bfloat16_logits(count: int, seed: int) -> np.ndarray:
    """uint16 [count]: bit patterns of log-normal logits, rounded to the nearest bfloat16."""
    draw = np.random.default_rng(seed)
    out: np.ndarray = np.empty(count, np.uint16)
    step = 1 << 22
    for first in range(0, count, step):
        logits = np.exp(0.9 * draw.standard_normal(min(step, count - first), np.float32))
        out[first : first + step] = (logits.view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)
    return out


def few_lists(documents: int, lists: int, seed: int, min_share: float = 0.001, max_share: float = 0.4) -> Columns:
    """Only the posting lists that one query touches, of a corpus that would not fit: learned vectors.

    List i holds a document with a chance that falls geometrically from `max_share` to `min_share`: 30 lists over 29
    million documents are 58 million postings.
    """
    shares = np.geomspace(max_share, min_share, lists)
    offsets, chunks = np.zeros(lists + 1, np.int64), []
    for i, share in enumerate(shares):
        capacity = int(documents * share + 10 * np.sqrt(documents * share) + 64)
        found = np.empty(capacity, np.int32)
        size = _draw_list(documents, share, seed + i, found)
        chunks.append(found[:size].copy())
        offsets[i + 1] = offsets[i] + size
    joined = np.concatenate(chunks)
    return Columns("learned", documents, offsets, joined, bfloat16_logits(len(joined), seed), np.empty(0, np.int64))


def columns_of(rows: Rows) -> Columns:
    """Transpose documents to posting lists."""
    lengths = np.empty(0, np.int64)
    if rows.kind == "bm25":
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows.values, dtype=np.int64)])
        lengths = sums[rows.offsets[1:]] - sums[rows.offsets[:-1]]
    offsets, chunks, values = transpose(rows.offsets, rows.terms, rows.values, rows.vocabulary)
    return Columns(rows.kind, rows.documents, offsets, chunks, values, lengths)


def rows_of(columns: Columns) -> Rows:
    """Transpose posting lists to documents."""
    offsets, terms, values = transpose(columns.offsets, columns.chunks, columns.values, columns.documents)
    return Rows(columns.kind, columns.vocabulary, offsets, terms, values)


def queries_for(columns: Columns, count: int, terms: int, weighted: bool, seed: int) -> list[Query]:
    """Queries of `terms` different terms, as common in the corpus as the terms that people ask for (SHARES).

    Weighted ones weigh log(1 + logit) like documents; the others weigh 1.
    """
    draw = np.random.default_rng(seed)
    found = np.diff(columns.offsets)
    order = np.argsort(found, kind="stable")
    order = order[found[order] > 0]
    shares = found[order] / columns.documents
    queries = []
    for number in range(count):
        wanted = np.exp(np.interp(draw.random(4 * terms), QUANTILES, np.log(SHARES)))
        # Not always the one nearest term: one of the 9 around it.
        at = np.clip(np.searchsorted(shares, wanted) + draw.integers(-4, 5, len(wanted)), 0, len(order) - 1)
        _, first = np.unique(at, return_index=True)
        chosen = np.sort(order[at[np.sort(first)[:terms]]])
        queries.append(Query(chosen.astype(np.int64), _query_weights(len(chosen), weighted, seed + number)))
    return queries


def queries_of_all_terms(columns: Columns, count: int, seed: int) -> list[Query]:
    """Return queries of all terms of the corpus, with weights that differ."""
    terms = np.arange(columns.vocabulary, dtype=np.int64)
    return [Query(terms, _query_weights(len(terms), True, seed + number)) for number in range(count)]


def _query_weights(count: int, weighted: bool, seed: int) -> np.ndarray:
    return value_table()[bfloat16_logits(count, seed)] if weighted else np.ones(count, np.float32)


@njit(cache=True)
def _draw_documents(
    lengths: Any, numbers: Any, shift: float, repeats: float, seed: int, offsets: Any, terms: Any, values: Any
) -> int:
    np.random.seed(seed)
    # The inverse of the continuous distribution function: one exponential a word.
    span = np.log((len(numbers) + shift) / (1 + shift))
    words = np.empty(lengths.max(), np.int32)
    at = 0
    for document in range(len(lengths)):
        length = lengths[document]
        for i in range(length):
            if i > 0 and np.random.random() < repeats:
                words[i] = words[np.random.randint(0, i)]
            else:
                rank = int((1 + shift) * np.exp(span * np.random.random()) - 1 - shift)
                words[i] = numbers[min(rank, len(numbers) - 1)]
        mine = words[:length]
        mine.sort()
        i = 0
        while i < length:
            j = i
            while j < length and mine[j] == mine[i]:
                j += 1
            terms[at] = mine[i]
            values[at] = j - i
            at += 1
            i = j
        offsets[document + 1] = at
    return at


@njit(cache=True)
def _draw_list(documents: int, share: float, seed: int, out: Any) -> int:
    """Every document with the chance `share`: gaps are geometric."""
    np.random.seed(seed)
    scale = 1.0 / np.log1p(-share)
    at, size = -1, 0
    while size < len(out):
        at += 1 + int(np.log(1.0 - np.random.random()) * scale)
        if at >= documents:
            break
        out[size] = at
        size += 1
    return size


@njit(cache=True)
def transpose(offsets: Any, minor: Any, values: Any, minor_count: int) -> Any:
    """CSR to CSC and back: a stable counting sort. Returns offsets int64, the other index int32, values."""
    new_offsets = np.zeros(minor_count + 1, np.int64)
    for i in range(len(minor)):
        new_offsets[minor[i] + 1] += 1
    for i in range(minor_count):
        new_offsets[i + 1] += new_offsets[i]
    slots = new_offsets[:-1].copy()
    major, new_values = np.empty(len(minor), np.int32), np.empty(len(minor), values.dtype)
    for row in range(len(offsets) - 1):
        for i in range(offsets[row], offsets[row + 1]):
            slot = slots[minor[i]]
            slots[minor[i]] = slot + 1
            major[slot] = row
            new_values[slot] = values[i]
    return new_offsets, major, new_values


@njit(cache=True)
def _bm25_weights(offsets: Any, chunks: Any, values: Any, idf: Any, norms: Any, out: Any) -> None:
    for term in range(len(offsets) - 1):
        for i in range(offsets[term], offsets[term + 1]):
            tf = float(values[i])
            out[i] = idf[term] * (tf / (tf + norms[chunks[i]]))
