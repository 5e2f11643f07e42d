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
from typing import Literal

import numpy as np
from scipy.sparse import csc_array, csr_array

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
        frequencies = self.values.astype(np.float64)
        weights = frequencies / (frequencies + self.norms()[self.chunks])
        if with_idf:
            weights *= np.repeat(self.idf(), np.diff(self.offsets))
        return weights.astype(dtype)


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


def bm25_rows(documents: int, vocabulary: int, seed: int) -> Rows:
    """Documents of Zipf-Mandelbrot words, p(rank) ~ 1 / (rank + 27), with log-normal lengths (sigma 0.45, 8 to 2,000).

    A word is put in the place of another one of its document with a chance of 0.55, because words come in bursts; then
    a document has about 163 different ones. Term numbers are shuffled ranks.
    """
    draw = np.random.default_rng(seed)
    mean_length, sigma, shift, step = 251.0, 0.45, 27.0, 1 << 14
    drawn = draw.lognormal(np.log(mean_length) - sigma**2 / 2, sigma, documents)
    lengths = np.clip(np.rint(drawn), 8, 2000).astype(np.int64)
    numbers = draw.permutation(vocabulary)
    span = np.log((vocabulary + shift) / (1 + shift))
    sizes, terms, values = [], [], []
    for first in range(0, documents, step):
        own = lengths[first : first + step]
        ranks = ((1 + shift) * np.exp(span * draw.random(own.sum())) - 1 - shift).astype(np.int64)
        starts = np.repeat(np.cumsum(own) - own, own)
        other = starts + (draw.random(len(ranks)) * np.repeat(own, own)).astype(np.int64)
        ranks = np.where(draw.random(len(ranks)) < 0.55, ranks[other], ranks)
        keys = np.repeat(np.arange(len(own)), own) * vocabulary + numbers[np.minimum(ranks, vocabulary - 1)]
        found, counts = np.unique(keys, return_counts=True)
        sizes.append(np.bincount(found // vocabulary, minlength=len(own)))
        terms.append((found % vocabulary).astype(np.int32))
        values.append(counts.astype(np.uint16))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    return Rows("bm25", vocabulary, offsets, np.concatenate(terms), np.concatenate(values))


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


def few_lists(documents: int, lists: int, seed: int) -> Columns:
    """Only the posting lists that one query touches, of a corpus that would not fit: learned vectors.

    List i holds a document with a chance that falls geometrically from 0.4 to 0.001: 30 lists over 29
    million documents are 58 million postings.
    """
    draw, chunks = np.random.default_rng(seed), []
    for share in np.geomspace(0.4, 0.001, lists):
        gaps = draw.geometric(share, int(documents * share + 10 * np.sqrt(documents * share) + 64))
        at = np.cumsum(gaps) - 1
        chunks.append(at[at < documents].astype(np.int32))
    offsets = np.concatenate([[0], np.cumsum([len(found) for found in chunks])])
    joined = np.concatenate(chunks)
    return Columns("learned", documents, offsets, joined, bfloat16_logits(len(joined), seed), np.empty(0, np.int64))


def columns_of(rows: Rows) -> Columns:
    lengths = np.empty(0, np.int64)
    if rows.kind == "bm25":
        lengths = np.add.reduceat(rows.values, rows.offsets[:-1], dtype=np.int64)
    columns = csr_array((rows.values, rows.terms, rows.offsets), (rows.documents, rows.vocabulary)).tocsc()
    offsets, chunks = columns.indptr.astype(np.int64), columns.indices.astype(np.int32)
    return Columns(rows.kind, rows.documents, offsets, chunks, columns.data, lengths)


def rows_of(columns: Columns) -> Rows:
    shape = columns.documents, columns.vocabulary
    rows = csc_array((columns.values, columns.chunks, columns.offsets), shape).tocsr()
    terms = rows.indices.astype(np.int32)
    return Rows(columns.kind, columns.vocabulary, rows.indptr.astype(np.int64), terms, rows.data)


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
