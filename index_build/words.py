"""Texts to term frequencies, compiled: no Python object is made for a word that was seen before.

A text is normalised and lower-cased by the analyzer. A kernel finds the words in its UTF-8 bytes and numbers them in a
hash table that compares their bytes, so that no two words meet; another counts each text's terms. A word that was never
seen comes back to Python, which asks the analyzer for its term once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ratchet.numba_cache import njit
from retrieval.sparse.analyzer import WORD, Analyzer
from retrieval.sparse.bits import load_64
from retrieval.sparse.shards import key_hashes

STOP = -1
# What a byte is: no part of a word, an ASCII letter or digit, or the first byte of a longer character.
BREAK, LETTER, LEAD = 0, 1, 2
# An odd number near 2^64 divided by the golden ratio: a product with it differs in its upper bits where factors do.
SPREAD = np.uint64(0x9E3779B97F4A7C15)
LINE_BREAK = 10
# The last byte, which is none of UTF-8's, of the key of a word of more than 8 bytes.
LONG = np.uint64(0xFF << 56)
HALF = np.uint64(32)


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
        self.terms: dict[str, int] = {}
        self.hashes = Growing(np.uint64)
        """`key_hash` of every term."""
        self._term_of_word = Growing(np.int32)
        self._tally = np.zeros(1024, np.uint32)
        # The hash table: in turns the key of a word, 0 where there is none, and its number; then the bytes of all words
        # with a line break after each, and where they begin.
        self._table: list[Any] = [
            np.zeros(1 << 13, np.uint64),
            np.empty(1 << 14, np.uint8),
            np.zeros(1 << 11, np.int64),
        ]

    def count(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(lengths, offsets, terms, frequencies): text i has lengths[i] terms in all, and the different ones are
        terms[offsets[i]:offsets[i + 1]] with their frequencies beside them."""
        normal = [self._analyzer.normal(text).encode("utf-8", "surrogatepass") for text in texts]
        ends = np.cumsum([len(data) for data in normal], dtype=np.int64)
        data = np.frombuffer(b"".join([*normal, bytes(8)]), np.uint8)  # a word's last 8 bytes are read together
        words = np.empty((len(data) + len(normal)) // 2 + 1, np.uint32)
        word_ends = np.empty(len(texts), np.int64)
        known = len(self._term_of_word)
        letters = NO_LETTERS if all(map(str.isascii, texts)) else _letters()
        count, *self._table = _number_words(data, ends, BYTES, letters, known, *self._table, words, word_ends)
        self._learn(known, count)
        terms, frequencies = np.empty_like(words), np.empty_like(words)
        lengths, offsets = np.empty(len(texts), np.uint32), np.zeros(len(texts) + 1, np.int64)
        if len(self._tally) <= len(self.terms):
            self._tally = np.zeros(2 * len(self.terms), np.uint32)
        _count_terms(
            words, word_ends, self._term_of_word.values, self._tally, lengths, offsets, terms, frequencies
        )  # fmt: skip
        return lengths, offsets, terms[: offsets[-1]], frequencies[: offsets[-1]]

    def _learn(self, known: int, count: int) -> None:
        """Find the terms of the words from number `known` on."""
        _, spelled, starts = self._table
        if known == count:
            return
        numbers, new = np.empty(count - known, np.int32), []
        words = spelled[starts[known] : starts[count] - 1].tobytes().decode().split("\n")
        for i, term in enumerate(map(self._analyzer.term, words)):
            if term is None:
                numbers[i] = STOP
                continue
            if term not in self.terms:
                self.terms[term] = len(self.terms)
                new.append(term)
            numbers[i] = self.terms[term]
        self._term_of_word.extend(numbers)
        self.hashes.extend(key_hashes(new))


NO_LETTERS = np.zeros(0, np.uint8)


@cache
def _letters() -> np.ndarray:
    """uint8 [all of Unicode]: 1 for what the analyzer's words are made of."""
    letters = np.zeros(sys.maxunicode + 1, np.uint8)
    for run in WORD.finditer("".join(map(chr, range(sys.maxunicode + 1)))):
        letters[run.start() : run.end()] = 1
    return letters


BYTES = np.full(256, LEAD, np.uint8)
BYTES[:128] = [LETTER if WORD.fullmatch(chr(byte)) else BREAK for byte in range(128)]


@njit(nogil=True, cache=True)
def _character(data: Any, at: int) -> Any:
    """(code point, bytes) of the character that the byte at `at`, which is not ASCII, begins."""
    first = np.int64(data[at])
    if first < 0xE0:
        return (first & 0x1F) << 6 | (data[at + 1] & 0x3F), 2
    middle = np.int64(data[at + 1] & 0x3F) << 6 | (data[at + 2] & 0x3F)
    if first < 0xF0:
        return (first & 0xF) << 12 | middle, 3
    return (first & 7) << 18 | middle << 6 | (data[at + 3] & 0x3F), 4


@njit(nogil=True, cache=True, inline="always")
def _slot(key: Any, slots: int) -> Any:
    """Where the search for a key begins among the slots, whose number is a power of 2."""
    product = (key ^ (key >> HALF)) * SPREAD
    return np.int64(product >> HALF) & (slots - 1)


@njit(nogil=True, cache=True, inline="always")
def _key(data: Any, first: int, end: int) -> Any:
    """What a word of up to 8 bytes is told apart by, those bytes, and longer ones are looked up by, a hash."""
    size = end - first
    key = load_64(data, first)
    if size <= 8:
        return key & (~np.uint64(0) >> np.uint64(64 - 8 * size))
    for at in range(first + 8, end, 8):
        key = (key ^ (key >> HALF)) * SPREAD ^ load_64(data, min(at, end - 8))
    return (key ^ (key >> HALF)) * SPREAD | LONG


@njit(nogil=True, cache=True, inline="always")
def _same(data: Any, first: int, end: int, spelled: Any, at: int) -> bool:
    """Whether the bytes first .. end - 1 of data, and a line break, are those of `spelled` from `at` on."""
    for i in range(end - first):
        if spelled[at + i] != data[first + i]:
            return False
    return spelled[at + end - first] == LINE_BREAK


@njit(nogil=True, cache=True)
def _larger(array: Any, size: int) -> Any:
    """The array with room for `size` elements, and for as many again."""
    larger = np.empty(2 * size, array.dtype)
    larger[: len(array)] = array
    return larger


@njit(nogil=True, cache=True)
def _more_slots(slots: Any) -> Any:
    """The hash table with twice as many slots."""
    more = np.zeros(2 * len(slots), np.uint64)
    for old in range(0, len(slots), 2):
        if slots[old]:
            slot = _slot(slots[old], len(more) >> 1)
            while more[2 * slot]:
                slot = (slot + 1) & ((len(more) >> 1) - 1)
            more[2 * slot], more[2 * slot + 1] = slots[old], slots[old + 1]
    return more


@njit(nogil=True, cache=True)
def _cut(data: Any, at: int, end: int, kinds: Any, letters: Any, bounds: Any) -> Any:
    """Where the words of the text at .. end - 1 begin and end, in turns; returns how many words there are."""
    # No branch depends on where words end, which a processor could not foretell.
    found = inside = np.int64(0)
    while at < end:
        bounds[found] = at
        kind = np.int64(kinds[data[at]])
        size = 1
        if kind == LEAD:
            point, size = _character(data, at)
            kind = np.int64(letters[point])
        found += kind ^ inside
        inside = kind
        at += size
    bounds[found] = end
    return (found + inside) >> 1


@njit(nogil=True, cache=True)
def _number_words(
    data: Any, ends: Any, kinds: Any, letters: Any, count: int, slots: Any, spelled: Any, starts: Any, words: Any,
    word_ends: Any,
) -> Any:  # fmt: skip
    """Number the words of some texts, which end at the bytes `ends` of data; 8 bytes more are there to read.

    `words` takes their numbers and word_ends where each text's end; `count` words are known before. Returns how many
    are now, and the arrays of the hash table, which may be new and larger ones.
    """
    found, text_start = 0, 0
    bounds = np.empty(0, np.int64)
    for text in range(len(ends)):
        if len(bounds) < ends[text] - text_start + 2:
            bounds = np.empty(2 * (ends[text] - text_start + 2), np.int64)
        for i in range(_cut(data, text_start, ends[text], kinds, letters, bounds)):
            first, end = bounds[2 * i], bounds[2 * i + 1]
            key = _key(data, first, end)
            slot = _slot(key, len(slots) >> 1)
            word = np.int64(-1)
            while slots[2 * slot]:
                if slots[2 * slot] == key:
                    word = np.int64(slots[2 * slot + 1])
                    if end - first <= 8 or _same(data, first, end, spelled, starts[word]):
                        break
                    word = np.int64(-1)
                slot = (slot + 1) & ((len(slots) >> 1) - 1)
            if word < 0:
                word = np.int64(count)
                count += 1
                slots[2 * slot], slots[2 * slot + 1] = key, word
                if count >= len(starts):
                    starts = _larger(starts, count + 1)
                starts[count] = starts[word] + end - first + 1
                if starts[count] > len(spelled):
                    spelled = _larger(spelled, starts[count])
                spelled[starts[word] : starts[count] - 1] = data[first:end]
                spelled[starts[count] - 1] = LINE_BREAK
                if 4 * count > len(slots):
                    slots = _more_slots(slots)
            words[found] = word
            found += 1
        word_ends[text] = found
        text_start = ends[text]
    return count, slots, spelled, starts


@njit(nogil=True, cache=True)
def _count_terms(
    words: Any, word_ends: Any, term_of_word: Any, tally: Any, lengths: Any, offsets: Any, terms: Any, frequencies: Any
) -> None:
    """Fill the last four arrays as `TermCounter.count` returns them.

    `tally` has a place for STOP and then one for every term; it is all 0 before and after.
    """
    at, first = np.int64(0), 0
    for text in range(len(word_ends)):
        for i in range(first, word_ends[text]):
            term = term_of_word[words[i]]
            place = np.int64(term) + 1
            terms[at] = term
            at += np.int64(tally[place] == 0) & np.int64(place > 0)
            tally[place] += 1
        lengths[text] = word_ends[text] - first - tally[0]
        tally[0] = 0
        for i in range(offsets[text], at):
            place = np.int64(terms[i]) + 1
            frequencies[i] = tally[place]
            tally[place] = 0
        offsets[text + 1] = at
        first = word_ends[text]
