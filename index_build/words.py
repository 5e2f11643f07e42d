"""Term frequencies of texts: the words of core/words.py, each word's term from the analyzer once, and the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ratchet.core.words import split_words
from ratchet.retrieval.arrays import Numbers, Words
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


class TermCounter(dict[str, int]):
    """The number of each word's term, found at first sight, and the counts of terms text by text."""

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self._analyzer = analyzer
        self.terms: dict[str, int] = {}
        self._new: list[str] = []
        self.hashes = Growing(np.uint64)
        """`key_hash` of every term."""

    def __missing__(self, word: str) -> int:
        term = self._analyzer.term(word)
        if term not in self.terms:
            self.terms[term] = len(self.terms)
            self._new.append(term)
        self[word] = self.terms[term]
        return self.terms[term]

    def count(self, texts: Sequence[str]) -> tuple[Words, Numbers, Words, Words]:
        """(lengths, offsets, terms, frequencies): text i has lengths[i] terms in all, and the different ones are
        terms[offsets[i]:offsets[i + 1]] with their frequencies beside them."""
        counts = [Counter(map(self.__getitem__, split_words(text))) for text in texts]
        self.hashes.extend(key_hashes(self._new))
        self._new = []
        return (
            np.array([one.total() for one in counts], np.uint32),
            np.array([0, *accumulate(map(len, counts))], np.int64),
            np.array([term for one in counts for term in one], np.uint32),
            np.array([frequency for one in counts for frequency in one.values()], np.uint32),
        )
