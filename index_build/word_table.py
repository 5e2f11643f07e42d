"""Numbers for the words of texts, compiled: no Python object is made for a word that was seen before.

A kernel finds the words in the UTF-8 bytes of `ratchet.core.words.spaced_words`, and numbers them in a hash table that
compares their bytes, so that no two words share a number.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ratchet.core.numba_cache import inner, njit
from ratchet.core.words import MARKS, WORD, spaced_words
from ratchet.retrieval.arrays import Bytes, Hashes, Numbers, Words
from ratchet.retrieval.sparse.reading import load_64

# What a character is: no part of a word, a letter or digit, or a mark, which is part of the word before it, if any.
BREAK, LETTER, MARK = 0, 1, 2
# In place of these, for a byte: the first one of a character beyond ASCII.
LEAD = 3
ASCII_KINDS = np.full(256, LEAD, np.uint8)
ASCII_KINDS[:128] = [LETTER if WORD.match(chr(byte)) else BREAK for byte in range(128)]
NO_KINDS = np.zeros(0, np.uint8)
# An odd number near 2^64 divided by the golden ratio: a product with it differs in its upper bits where factors do.
SPREAD = np.uint64(0x9E3779B97F4A7C15)
LINE_BREAK = 10
# The last byte, which is none of UTF-8's, of the key of a word of more than 8 bytes.
LONG = np.uint64(0xFF << 56)
HALF = np.uint64(32)


class WordTable:
    """Numbers words in order of first sight."""

    def __init__(self) -> None:
        self._count = 0
        # Slots: in turns the key of a word, 0 where there is none, and its number.
        self._slots: Any = np.zeros(1 << 13, np.uint64)
        # The bytes of all words with a line break after each, and where they begin.
        self._spelled: Any = np.empty(1 << 14, np.uint8)
        self._starts: Any = np.zeros(1 << 11, np.int64)

    def __len__(self) -> int:
        return self._count

    def number(self, texts: Sequence[str]) -> tuple[Words, Numbers]:
        """(words, ends): text i has the words of numbers words[ends[i - 1]:ends[i]], uint32, in order."""
        spaced = list(map(spaced_words, texts))
        text_ends = np.cumsum([len(data) for data in spaced], dtype=np.int64)
        data = np.frombuffer(b"".join([*spaced, bytes(8)]), np.uint8)  # a word's last 8 bytes are read together
        words, ends = np.empty((len(data) + len(texts)) // 2 + 1, np.uint32), np.empty(len(texts), np.int64)
        kinds = NO_KINDS if all(map(bytes.isascii, spaced)) else character_kinds()
        self._count, self._slots, self._spelled, self._starts = _number_words(
            data, text_ends, ASCII_KINDS, kinds, self._count, self._slots, self._spelled, self._starts, words, ends
        )  # fmt: skip
        return words, ends

    def words_from(self, first: int) -> list[str]:
        """The words from number `first` on."""
        if first == self._count:
            return []
        spelled = self._spelled[self._starts[first] : self._starts[self._count] - 1]
        return str(spelled.tobytes().decode()).split("\n")


@cache
def character_kinds() -> Bytes:
    """uint8 [all of Unicode]: BREAK, LETTER or MARK."""
    kinds = np.full(sys.maxunicode + 1, BREAK, np.uint8)
    text = "".join(map(chr, range(sys.maxunicode + 1)))
    # In this order: a word is a letter or digit, and then marks too.
    for pattern, kind in ((WORD, LETTER), (MARKS, MARK)):
        for run in pattern.finditer(text):
            kinds[run.start() : run.end()] = kind
    return kinds


@inner
def _character(data: Bytes, at: int) -> tuple[int, int]:
    """(code point, bytes) of the character that the byte at `at`, which is not ASCII, begins."""
    first = np.int64(data[at])
    if first < 0xE0:
        return (first & 0x1F) << 6 | (data[at + 1] & 0x3F), 2
    middle = np.int64(data[at + 1] & 0x3F) << 6 | (data[at + 2] & 0x3F)
    if first < 0xF0:
        return (first & 0xF) << 12 | middle, 3
    return (first & 7) << 18 | middle << 6 | (data[at + 3] & 0x3F), 4


@inner(inline="always")
def _slot(key: np.uint64, slots: int) -> np.int64:
    """Where the search for a key begins among the slots, whose number is a power of 2."""
    product = (key ^ (key >> HALF)) * SPREAD
    return np.int64(product >> HALF) & (slots - 1)


@inner(inline="always")
def _key(data: Bytes, first: int, end: int) -> np.uint64:
    """What a word of up to 8 bytes is told apart by, those bytes, and longer ones are looked up by, a hash."""
    size = end - first
    key = load_64(data, first)
    if size <= 8:
        return key & (~np.uint64(0) >> np.uint64(64 - 8 * size))
    for at in range(first + 8, end, 8):
        key = (key ^ (key >> HALF)) * SPREAD ^ load_64(data, min(at, end - 8))
    return (key ^ (key >> HALF)) * SPREAD | LONG


@inner(inline="always")
def _same(data: Bytes, first: int, end: int, spelled: Bytes, at: int) -> bool:
    """Whether the bytes first .. end - 1 of data, and a line break, are those of `spelled` from `at` on."""
    for i in range(end - first):
        if spelled[at + i] != data[first + i]:
            return False
    return spelled[at + end - first] == LINE_BREAK


@inner
def _larger(array: Bytes | Numbers, size: int) -> Bytes | Numbers:
    """The array with room for `size` elements, and for as many again."""
    larger = np.empty(2 * size, array.dtype)
    for i in range(len(array)):
        larger[i] = array[i]
    return larger


@inner
def _more_slots(slots: Hashes) -> Hashes:
    """The hash table with twice as many slots."""
    more = np.zeros(2 * len(slots), np.uint64)
    for old in range(0, len(slots), 2):
        if slots[old]:
            slot = _slot(slots[old], len(more) >> 1)
            while more[2 * slot]:
                slot = (slot + 1) & ((len(more) >> 1) - 1)
            more[2 * slot], more[2 * slot + 1] = slots[old], slots[old + 1]
    return more


@inner
def _find_words(data: Bytes, at: int, end: int, ascii_kinds: Bytes, kinds: Bytes, bounds: Numbers) -> np.int64:
    """Where the words of the text at .. end - 1 begin and end, in turns; returns how many words there are."""
    # No branch depends on where words end, which a processor could not foretell.
    edges = inside = np.int64(0)
    while at < end:
        bounds[edges] = at
        kind = np.int64(ascii_kinds[data[at]])
        size = 1
        if kind == LEAD:
            point, size = _character(data, at)
            kind = np.int64(kinds[point])
            kind = (kind & LETTER) | ((kind >> 1) & inside)  # a mark is what the character before it is
        edges += kind ^ inside
        inside = kind
        at += size
    bounds[edges] = end
    return (edges + inside) >> 1


@njit(nogil=True, cache=True)
def _number_words(
    data: Bytes, text_ends: Numbers, ascii_kinds: Bytes, kinds: Bytes, count: int, slots: Hashes, spelled: Bytes,
    starts: Numbers, words: Words, word_ends: Numbers,
) -> tuple[int, Hashes, Bytes, Numbers]:  # fmt: skip
    """Number the words of some texts, which end at the bytes `text_ends` of data; 8 bytes more are there to read.

    `words` takes their numbers and word_ends where each text's end; `count` words are known before. Returns how many
    are now, and the arrays of the hash table, which may be new and larger ones.
    """
    numbered, text_start = 0, np.int64(0)
    bounds = np.empty(0, np.int64)
    for text in range(len(text_ends)):
        if len(bounds) < text_ends[text] - text_start + 2:
            bounds = np.empty(2 * (text_ends[text] - text_start + 2), np.int64)
        for i in range(_find_words(data, text_start, text_ends[text], ascii_kinds, kinds, bounds)):
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
                for i in range(end - first):
                    spelled[starts[word] + i] = data[first + i]
                spelled[starts[count] - 1] = LINE_BREAK
                if 4 * count > len(slots):
                    slots = _more_slots(slots)
            words[numbered] = word
            numbered += 1
        word_ends[text] = numbered
        text_start = text_ends[text]
    return count, slots, spelled, starts
