"""Texts to term frequencies: each word's number from word_table.py, its term from the analyzer once, and the counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ratchet.core.numba_cache import njit
from ratchet.index_build.word_table import WordTable
from ratchet.retrieval.arrays import Numbers, Places, Words
from ratchet.retrieval.index import key_hashes
from ratchet.retrieval.sparse.terms import Analyzer


class Growing:
    """A flat array that grows at its end."""

    def __init__(self, dtype: Any) -> None:
        self._array = np.empty(1024, dtype)
        self._used = 0

    def extend(self, values: Any) -> None:
        used = self._used + len(values)
        if used > len(self._array):
            larger = np.empty(used + used // 2, self._array.dtype)
            larger[: self._used] = self.values
            self._array = larger
        self._array[self._used : used] = values
        self._used = used

    @property
    def values(self) -> np.ndarray:
        return self._array[: self._used]

    def __len__(self) -> int:
        return self._used


class TermCounter:
    """Numbers terms in order of first sight, and counts them text by text."""

    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer
        self._words = WordTable()
        self.terms: dict[str, int] = {}
        self.hashes = Growing(np.uint64)
        """`key_hash` of every term."""
        self._term_of_word = Growing(np.int32)
        self._tally = np.zeros(1024, np.uint32)

    def count(self, texts: Sequence[str]) -> tuple[Words, Numbers, Words, Words]:
        """(lengths, offsets, terms, frequencies): text i has lengths[i] terms in all, and the different ones are
        terms[offsets[i]:offsets[i + 1]] with their frequencies beside them."""
        words, ends = self._words.number(texts)
        self._learn()
        if len(self._tally) <= len(self.terms):
            self._tally = np.zeros(2 * len(self.terms), np.uint32)
        terms, frequencies = np.empty_like(words), np.empty_like(words)
        lengths, offsets = np.empty(len(texts), np.uint32), np.zeros(len(texts) + 1, np.int64)
        _count_terms(words, ends, self._term_of_word.values, self._tally, lengths, offsets, terms, frequencies)
        return lengths, offsets, terms[: offsets[-1]], frequencies[: offsets[-1]]

    def _learn(self) -> None:
        """Find the terms of the words that are new."""
        new = []
        numbers = []
        for term in map(self._analyzer.term, self._words.words_from(len(self._term_of_word))):
            if term not in self.terms:
                self.terms[term] = len(self.terms)
                new.append(term)
            numbers.append(self.terms[term])
        self._term_of_word.extend(numbers)
        self.hashes.extend(key_hashes(new))


@njit(nogil=True, cache=True)
def _count_terms(
    words: Words,
    word_ends: Numbers,
    term_of_word: Places,
    tally: Words,
    lengths: Words,
    offsets: Numbers,
    terms: Words,
    frequencies: Words,
) -> None:
    """Fill the last four arrays as `TermCounter.count` returns them.

    `tally` has a place for every term; it is all 0 before and after.
    """
    at, first = np.int64(0), 0
    for text in range(len(word_ends)):
        for i in range(first, word_ends[text]):
            term = term_of_word[words[i]]
            terms[at] = term
            at += np.int64(tally[term] == 0)
            tally[term] += 1
        lengths[text] = word_ends[text] - first
        for i in range(offsets[text], at):
            frequencies[i] = tally[terms[i]]
            tally[terms[i]] = 0
        offsets[text + 1] = at
        first = word_ends[text]
