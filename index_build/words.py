"""Texts to term frequencies, compiled: no Python object is made for a word that was seen before.

A text is normalised and lower-cased in Python as `Analyzer.split` does. A kernel finds the words in its UTF-8 bytes and
numbers them in a hash table that compares their bytes, so that no two words meet; another counts each text's terms. A
word that was never seen comes back to Python, which asks the analyzer for its term once.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ratchet.numba_cache import njit
from retrieval.sparse.analyzer import WORD, Analyzer
from retrieval.sparse.shards import key_hash

STOP = -1
# What a byte is: no part of a word, an ASCII letter or digit, or the first byte of a longer character.
BREAK, LETTER, LEAD = 0, 1, 2
# FNV-1a's, and an odd number near 2^64 divided by the golden ratio, which spreads its result over all bits.
BASIS, PRIME, SPREAD = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3), np.uint64(0x9E3779B97F4A7C15)


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
        # Of the hash table: slots (low 32 bits of the hash, then the word's number + 1, or 0), each word's hash, the
        # bytes of all words, and where each begins.
        self._table = (
            np.zeros(1 << 12, np.uint64), np.empty(1 << 11, np.uint64), np.empty(1 << 14, np.uint8),
            np.zeros((1 << 11) + 1, np.int64),
        )  # fmt: skip

    def count(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(lengths, offsets, terms, frequencies): text i has lengths[i] terms in all, and the different ones are
        terms[offsets[i]:offsets[i + 1]] with their frequencies beside them."""
        lowered = [
            (text if text.isascii() else unicodedata.normalize("NFKC", text)).lower().encode("utf-8", "surrogatepass")
            for text in texts
        ]
        ends = np.cumsum([len(data) for data in lowered], dtype=np.int64)
        data = np.frombuffer(b"".join(lowered), np.uint8)
        words = np.empty((len(data) + len(lowered)) // 2 + 1, np.uint32)
        word_ends = np.empty(len(texts), np.int64)
        known = len(self._term_of_word)
        letters = NO_LETTERS if all(map(str.isascii, texts)) else _letters()
        count, *self._table = _number_words(data, ends, BYTES, letters, known, *self._table, words, word_ends)
        self._learn(known, count)
        terms, frequencies = np.empty(word_ends[-1] if len(texts) else 0, np.uint32), np.empty_like(words)
        lengths, offsets = np.empty(len(texts), np.uint32), np.zeros(len(texts) + 1, np.int64)
        if len(self._tally) < len(self.terms):
            self._tally = np.zeros(2 * len(self.terms), np.uint32)
        _count_terms(
            words, word_ends, self._term_of_word.values, self._tally, lengths, offsets, terms, frequencies
        )  # fmt: skip
        return lengths, offsets, terms[: offsets[-1]], frequencies[: offsets[-1]]

    def _learn(self, known: int, count: int) -> None:
        """Find the terms of the words from number `known` on."""
        _, _, spelled, starts = self._table
        data = spelled[starts[known] : starts[count]].tobytes()
        bounds = (starts[known : count + 1] - starts[known]).tolist()
        numbers, hashes = [], []
        for start, end in zip(bounds[:-1], bounds[1:], strict=True):
            term = self._analyzer.term(data[start:end].decode())
            number = STOP
            if term is not None:
                number = self.terms.setdefault(term, len(self.terms))
                if number == len(self.hashes) + len(hashes):
                    hashes.append(key_hash(term))
            numbers.append(number)
        self._term_of_word.extend(numbers)
        self.hashes.extend(np.array(hashes, np.uint64))


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


@njit(nogil=True, cache=True)
def _larger(array: Any, size: int) -> Any:
    """The array with room for `size` elements, and for as many again."""
    larger = np.empty(2 * size, array.dtype)
    larger[: len(array)] = array
    return larger


@njit(nogil=True, cache=True)
def _number_words(
    data: Any, ends: Any, kinds: Any, letters: Any, count: int, slots: Any, hashes: Any, spelled: Any, starts: Any,
    words: Any, word_ends: Any,
) -> Any:  # fmt: skip
    """Number the words of some texts, which end at the bytes `ends` of data.

    `words` takes their numbers and word_ends where each text's end; `count` words are known before. Returns how many
    are now, and the arrays of the hash table, which may be new and larger ones.
    """
    found, at = 0, 0
    shift = np.uint64(64 - int(np.log2(len(slots))))
    for text in range(len(ends)):
        end = ends[text]
        while at < end:
            first, spread, size = at, BASIS, 1
            while at < end:
                kind = kinds[data[at]]
                if kind == BREAK:
                    break
                if kind == LEAD:
                    point, size = _character(data, at)
                    if not letters[point]:
                        break
                    for _ in range(size - 1):
                        spread = (spread ^ np.uint64(data[at])) * PRIME
                        at += 1
                spread = (spread ^ np.uint64(data[at])) * PRIME
                at += 1
                size = 1
            if at == first:  # a character that is no part of a word
                at += size
                continue
            spread = (spread ^ (spread >> np.uint64(32))) * SPREAD
            low = spread << np.uint64(32)
            slot = np.int64(spread >> shift)
            word = -1
            while slots[slot]:
                if slots[slot] & ~np.uint64(0xFFFFFFFF) == low:
                    other = np.int64(slots[slot] & np.uint64(0xFFFFFFFF)) - 1
                    place = starts[other]
                    if starts[other + 1] - place == at - first:
                        i = first
                        while i < at and spelled[place + i - first] == data[i]:
                            i += 1
                        if i == at:
                            word = other
                            break
                slot = (slot + 1) & (len(slots) - 1)
            if word < 0:
                word = count
                count += 1
                slots[slot] = low | np.uint64(count)
                place = starts[word]
                if count >= len(hashes):
                    hashes, starts = _larger(hashes, count), _larger(starts, count + 1)
                if place + at - first > len(spelled):
                    spelled = _larger(spelled, place + at - first)
                hashes[word] = spread
                starts[count] = place + at - first
                spelled[place : starts[count]] = data[first:at]
                if 2 * count > len(slots):
                    slots = np.zeros(4 * len(slots), np.uint64)
                    shift -= np.uint64(2)
                    for other in range(count):
                        slot = np.int64(hashes[other] >> shift)
                        while slots[slot]:
                            slot = (slot + 1) & (len(slots) - 1)
                        slots[slot] = hashes[other] << np.uint64(32) | np.uint64(other + 1)
            words[found] = word
            found += 1
        word_ends[text] = found
    return count, slots, hashes, spelled, starts


@njit(nogil=True, cache=True)
def _count_terms(
    words: Any, word_ends: Any, term_of_word: Any, tally: Any, lengths: Any, offsets: Any, terms: Any, frequencies: Any
) -> None:
    """Fill the last four arrays as `TermCounter.count` returns them; `tally` is all 0 before and after."""
    at, first = 0, 0
    for text in range(len(word_ends)):
        lengths[text] = 0
        for i in range(first, word_ends[text]):
            term = term_of_word[words[i]]
            if term == STOP:
                continue
            lengths[text] += 1
            if tally[term] == 0:
                terms[at] = term
                at += 1
            tally[term] += 1
        for i in range(offsets[text], at):
            frequencies[i] = tally[terms[i]]
            tally[terms[i]] = 0
        offsets[text + 1] = at
        first = word_ends[text]
