"""BM25 postings: terms counted chunk by chunk onto the disk, then sorted by term and weighted.

Memory holds the vocabulary, one number per chunk and one slice of the postings, however large the corpus is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
from numba import njit

from index_build.writing import FolderWriter
from retrieval.words import Words

# Postings that are sorted in memory at once: 8 bytes each.
SLICE = 1 << 26
STOP = -1


class TermNumbers(dict[str, int]):
    """Word to the number of its term, in order of first sight; STOP for a stop word. Each word is stemmed once."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self.terms: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        term = self._words.term(word)
        number = STOP if term is None else self.terms.setdefault(term, len(self.terms))
        self[word] = number
        return number


class Postings:
    """Collects the terms of chunks in chunk order; `write` turns them into the index's files.

    `spill` is an empty temporary file, opened for reading and writing.
    """

    def __init__(self, words: Words, spill: BinaryIO) -> None:
        self._split = words.split
        self._numbers = TermNumbers(words)
        self._spill = spill
        self._lengths: list[int] = []

    @property
    def chunks(self) -> int:
        return len(self._lengths)

    @property
    def mean_length(self) -> float:
        return float(np.mean(self._lengths)) if self._lengths else 0.0

    def add(self, texts: Sequence[str]) -> None:
        """Count the terms of the next chunks."""
        numbers = self._numbers
        terms: list[int] = []
        lengths: list[int] = []
        for text in texts:
            before = len(terms)
            terms += [number for word in self._split(text) if (number := numbers[word]) != STOP]
            lengths.append(len(terms) - before)
        first = len(self._lengths)
        self._lengths += lengths
        chunks = np.repeat(np.arange(first, first + len(texts), dtype=np.uint64), lengths)
        keys, counts = np.unique(chunks << np.uint64(32) | np.array(terms, np.uint64), return_counts=True)
        rows = np.stack([keys & np.uint64(0xFFFFFFFF), keys >> np.uint64(32), counts.astype(np.uint64)], axis=1)
        self._spill.write(rows.astype("<u4").tobytes())

    def write(self, files: FolderWriter, k1: float, b: float) -> tuple[int, int]:
        """Write terms and weighted postings; returns how many there are of each."""
        self._spill.flush()
        size = self._spill.tell() // 12
        # An empty file cannot be mapped: a corpus of stop words alone has no postings.
        shape = (size, 3)
        rows = np.memmap(self._spill, "<u4", mode="r", shape=shape) if size else np.empty(shape, "<u4")

        # Sorted as bytes, not as strings: the two differ, and bisection in the index compares bytes.
        terms = sorted(self._numbers.terms, key=str.encode)
        rank = np.empty(len(terms), np.int64)
        rank[[self._numbers.terms[term] for term in terms]] = np.arange(len(terms))
        frequencies = np.zeros(len(terms), np.int64)
        _count_terms(rows, rank, frequencies)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(frequencies)])

        files.strings("terms").extend(terms)
        files.array("posting_offsets", "<i8").append(offsets)
        chunks, weights = files.array("posting_chunks", "<u4"), files.array("posting_weights", "<f4")
        idf = np.log1p((self.chunks - frequencies + 0.5) / (frequencies + 0.5))
        norms = k1 * (1 - b + b * np.array(self._lengths) / (self.mean_length or 1.0))
        first = 0
        while first < len(terms):
            # As many terms as fit into a slice, but at least one.
            last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + SLICE, side="right")) - 1)
            base, end = offsets[first], offsets[last]
            slots = offsets[first:last] - base
            slice_chunks = np.empty(end - base, np.uint32)
            slice_weights = np.empty(end - base, np.float32)
            _weigh_terms(rows, rank, first, last, slots, idf, norms, slice_chunks, slice_weights)
            chunks.append(slice_chunks)
            weights.append(slice_weights)
            first = last
        return len(terms), size


@njit(cache=True)
def _count_terms(rows: Any, rank: Any, frequencies: Any) -> None:
    for i in range(len(rows)):
        frequencies[rank[rows[i, 0]]] += 1


@njit(cache=True)
def _weigh_terms(
    rows: Any, rank: Any, first: int, last: int, slots: Any, idf: Any, norms: Any, out_chunks: Any, out_weights: Any
) -> None:
    """One slice of a stable counting sort: postings of terms first .. last - 1, in chunk order within a term.

    rows holds (term number, chunk, term frequency); slots[i] is where the next posting of term first + i goes.
    """
    for i in range(len(rows)):
        term = rank[rows[i, 0]]
        if first <= term < last:
            chunk, frequency = rows[i, 1], rows[i, 2]
            slot = slots[term - first]
            slots[term - first] = slot + 1
            out_chunks[slot] = chunk
            out_weights[slot] = idf[term] * frequency / (frequency + norms[chunk])
