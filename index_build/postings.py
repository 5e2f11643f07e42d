"""Postings of one shard: collected chunk by chunk, then sorted by term and written as the posting file.

Memory holds the vocabulary, a number and a code per chunk, the BUFFER and one SLICE of the postings, however large the
shard is; what the BUFFER does not hold is collected on the disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ratchet.core.numba_cache import inner, njit
from ratchet.core.words import split_words
from ratchet.index_build.shard import FolderWriter
from ratchet.retrieval.arrays import Bytes, Floats, Halves, Numbers, Words
from ratchet.retrieval.index import NOT_THERE, key_hashes
from ratchet.retrieval.sparse.bits import OVERREAD
from ratchet.retrieval.sparse.postings import (
    BITS,
    BLOCKS,
    FULL,
    LOWS,
    RANK,
    SAMPLE_BITS,
    WINDOW,
    WINDOW_BITS,
    block_bytes,
    code_bytes,
    head_bytes,
    lows_shape,
)
from ratchet.retrieval.sparse.quantisation import (
    FAR,
    NARROW_LAST,
    frequency_code,
    length_norm,
    smallest_frequency,
    value_codes,
)
from ratchet.retrieval.sparse.terms import Analyzer

# Postings that are sorted in memory at once: about 20 bytes each.
SLICE = 1 << 23
# Files that postings are collected in, by ranges of terms, so that sorting reads each posting twice, not once a slice.
PARTITIONS = 16
# Rows of 12 bytes that are held before they go to the files: where no file's share of them is full, none is written.
BUFFER = 1 << 22


Coder = Callable[[int, Numbers, Words, Words, Bytes, Bytes], tuple[Numbers, Words]]
"""Fills the codes [postings] and places [postings, or none] of the terms from a first one on, whose postings begin at
bounds [terms + 1] of chunks and values [postings]; returns the keys and values of the exceptions."""


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


class Spill:
    """Rows of (term, chunk, value) in PARTITIONS parts, each held until it is full and then in a temporary file of a
    folder; chunks come in ascending order."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / f"spill-{i:02d}" for i in range(PARTITIONS)]
        self._files: list[BinaryIO | None] = [None] * PARTITIONS
        self._held = np.empty((PARTITIONS, BUFFER // PARTITIONS, 3), "<u4")
        self._filled = np.zeros(PARTITIONS, np.int64)
        self.rows = 0

    def add(
        self,
        first: int,
        offsets: Numbers,
        terms: Words,
        values: Words | Halves,
        min_value: int,
        partitions: Bytes,
    ) -> None:
        """Chunk first + i has terms[offsets[i]:offsets[i + 1]] and the values beside them, of which those below
        `min_value` are left out; partitions: uint8 per term."""
        row, at = 0, int(offsets[0])
        while at < offsets[-1]:
            row, at, dealt = _deal(
                first, offsets, row, at, terms, values, min_value, partitions, self._held, self._filled
            )  # fmt: skip
            self.rows += dealt
            for part in np.flatnonzero(self._filled == self._held.shape[1]).tolist():
                self._flush(part)

    def _flush(self, part: int) -> None:
        file = self._files[part]
        if file is None:
            file = self._files[part] = self._paths[part].open("wb")
        file.write(self._held[part, : self._filled[part]].data)
        self._filled[part] = 0

    def partitions(self) -> Iterator[Words]:
        """The rows of each part, uint32 [n, 3]; a file is deleted when the next is asked for."""
        for part, (path, file) in enumerate(zip(self._paths, self._files, strict=True)):
            if file is None:
                yield self._held[part, : self._filled[part]]
                continue
            self._flush(part)
            file.close()
            yield np.memmap(path, "<u4", mode="r+", shape=(path.stat().st_size // 12, 3))
            path.unlink()

    def close(self) -> None:
        for path, file in zip(self._paths, self._files, strict=True):
            if file is not None:
                file.close()
            path.unlink(missing_ok=True)


@njit(nogil=True, cache=True)
def _deal(
    chunk: int, offsets: Numbers, row: int, at: int, terms: Words, values: Words | Halves, min_value: int,
    partitions: Bytes, held: Words, filled: Numbers,
) -> tuple[int, int, int]:  # fmt: skip
    """Deal postings out to their parts, from posting `at` of row `row` on, until one is full; returns where it stopped
    (row, posting) and how many were dealt."""
    dealt = 0
    room = held.shape[1]
    while row < len(offsets) - 1:
        while at < offsets[row + 1]:
            value = values[at]
            if value >= min_value:
                term = terms[at]
                part = partitions[term]
                place = filled[part]
                held[part, place, 0] = term
                held[part, place, 1] = chunk + row
                held[part, place, 2] = value
                filled[part] = place + 1
                dealt += 1
                if place + 1 == room:
                    return row, at + 1, dealt
            at += 1
        row += 1
    return row, at, dealt


class Bm25Postings:
    """Collects the terms of chunks in chunk order; `write` makes the shard's files of them."""

    def __init__(self, words: Analyzer, folder: Path, k1: float, b: float) -> None:
        self._counter = TermCounter(words)
        self._spill = Spill(folder)
        self._k1, self._b = k1, b
        self._lengths = Growing(np.uint32)
        self._partitions = Growing(np.uint8)

    def add(self, texts: Sequence[str]) -> None:
        lengths, offsets, terms, frequencies = self._counter.count(texts)
        new = self._counter.hashes.values[len(self._partitions) :]
        self._partitions.extend(new >> np.uint64(60))
        self._spill.add(len(self._lengths), offsets, terms, frequencies, 1, self._partitions.values)
        self._lengths.extend(lengths)

    def write(self, files: FolderWriter) -> dict[str, Any]:
        # Terms stand in the order of their hashes, which a search finds them by.
        hashes = self._counter.hashes.values
        order = np.argsort(hashes)
        if len(hashes) > 1 and (hashes[order][1:] == hashes[order][:-1]).any():
            raise RuntimeError("two terms share a 64-bit hash; leave one of the documents that hold them out")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        lengths = self._lengths.values
        total = int(lengths.sum(dtype=np.int64))
        mean = float(total) / max(len(lengths), 1) or 1.0
        files.array("term_hashes", "<u8").append(hashes[order])
        files.array("lengths", "<u4").append(lengths)
        once = np.empty(len(lengths), np.uint8)
        single_codes(lengths, self._k1, self._b, mean, once)

        def code(
            first: int, bounds: Numbers, chunks: Words, values: Words, codes: Bytes, places: Bytes
        ) -> tuple[Numbers, Words]:
            coded: tuple[Numbers, Words] = frequency_codes(
                first, bounds, chunks, values, once, lengths, self._k1, self._b, mean, codes
            )
            return coded

        _write_lists(files, self._spill, rank, len(lengths), code, placed=False)
        return {"terms": len(hashes), "postings": self._spill.rows, "total_length": total, "top": 1.0}

    def close(self) -> None:
        self._spill.close()


class SparsePostings:
    """Collects learned sparse vectors in chunk order; `write` makes the shard's files of them.

    A posting's value is a number with an ascending float32 weight; `weights` gives the weight of every number.
    """

    def __init__(self, folder: Path, vocabulary: int, weights: Floats) -> None:
        self._spill = Spill(folder)
        self._vocabulary = vocabulary
        self._weights = weights
        self._least = int(np.searchsorted(weights, 0, side="right"))
        self._largest = 0
        self._chunks = 0
        self._partitions = (np.arange(vocabulary, dtype=np.int64) * PARTITIONS // vocabulary).astype(np.uint8)

    def add(self, offsets: Numbers, terms: Words, values: Halves) -> None:
        """The next chunks' vectors: row i has terms[offsets[i]:offsets[i + 1]] and, beside them, value numbers."""
        if len(terms):
            largest = int(values.max())
            if int(terms.max()) >= self._vocabulary or largest >= len(self._weights):
                raise IndexError("a vector has a term or a value number that there is none of")
            self._spill.add(self._chunks, offsets, terms, values, self._least, self._partitions)
            self._largest = max(self._largest, largest)
        self._chunks += len(offsets) - 1

    def write(self, files: FolderWriter) -> dict[str, Any]:
        weights = self._weights[: self._largest + 1].astype(np.float32)
        if not len(weights) or weights[-1] <= 0:
            weights = np.array([0, 1], np.float32)
        codes_of_values, first_of_codes = value_codes(weights)
        files.array("weights", "<f4").append(weights)
        files.array("code_values", "<u4").append(first_of_codes)

        def code(
            first: int, bounds: Numbers, chunks: Words, values: Words, codes: Bytes, places: Bytes
        ) -> tuple[Numbers, Words]:
            coded: tuple[Numbers, Words] = value_places(
                first, bounds, chunks, values, codes_of_values, first_of_codes, codes, places
            )
            return coded

        rank = np.arange(self._vocabulary)
        _write_lists(files, self._spill, rank, self._chunks, code, placed=True)
        return {
            "terms": self._vocabulary,
            "postings": self._spill.rows,
            "total_length": 0,
            "top": float(weights[-1]),
        }

    def close(self) -> None:
        self._spill.close()


def _write_lists(files: FolderWriter, spill: Spill, rank: Numbers, chunk_count: int, code: Coder, placed: bool) -> None:
    """Sort the rows by the rank of their terms and write the regions, slice by slice."""
    data_file, regions_file = files.array("postings", "|u1"), files.array("regions", "<u4")
    keys_file, values_file = files.array("exception_keys", "<i8"), files.array("exception_values", "<u4")
    data = np.empty(0, np.uint8)
    done = 0
    for i, rows in enumerate(spill.partitions()):
        frequencies = np.zeros(len(rank) - done, np.int64)
        seen = _count(rows, rank, done, frequencies)
        # Partitions hold ascending ranges of ranks; terms without rows at the end count as the last partition's.
        end = len(rank) if i == PARTITIONS - 1 else done + seen
        offsets = np.concatenate([[0], np.cumsum(frequencies[: end - done])])
        first = 0
        while first < end - done:
            # As many terms as fit into a slice, but at least one.
            last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + SLICE, side="right")) - 1)
            bounds = offsets[first : last + 1] - offsets[first]
            chunks = np.empty(bounds[-1], np.uint32)
            values = np.empty(bounds[-1], np.uint32)
            _sort(rows, rank, done + first, done + last, bounds[:-1].copy(), chunks, values)
            codes = np.empty(len(chunks), np.uint8)
            places = np.empty(len(chunks) if placed else 0, np.uint8)
            keys, exceptions = code(done + first, bounds, chunks, values, codes, places)
            if len(data) < (needed := max_region_bytes(len(chunks), last - first)):
                data = np.empty(needed, np.uint8)
            regions = np.empty(last - first, np.int64)
            used = encode_lists(bounds, chunks, codes, places, chunk_count, data, regions)
            before = data_file.bytes >> 2
            if before + (used >> 2) >= NOT_THERE:
                raise RuntimeError("a shard's postings exceed 16 GB; set index.shard_documents to a smaller number")
            regions_file.append(np.where(regions < 0, NOT_THERE, regions + before))
            data_file.append(data[:used])
            keys_file.append(keys)
            values_file.append(exceptions)
            first = last
        done = end
    if data_file.bytes:
        data_file.append(np.zeros(OVERREAD, np.uint8))


@njit(cache=True)
def _count(rows: Words, rank: Numbers, first: int, frequencies: Numbers) -> int:
    """Postings of every term from rank `first` on; returns one more than the largest rank seen, less `first`."""
    end = 0
    for i in range(len(rows)):
        at = rank[rows[i, 0]] - first
        frequencies[at] += 1
        end = max(end, at + 1)
    return end


@njit(cache=True)
def _sort(rows: Words, rank: Numbers, first: int, last: int, slots: Numbers, chunks: Words, values: Words) -> None:
    """One slice of a stable counting sort: postings of the terms of ranks first .. last - 1, in chunk order."""
    for i in range(len(rows)):
        at = rank[rows[i, 0]] - first
        if 0 <= at < last - first:
            slot = slots[at]
            slots[at] = slot + 1
            chunks[slot] = rows[i, 1]
            values[slot] = rows[i, 2]


# Marks a value that goes to the exceptions. Values are smaller: frequencies in a chunk, and numbers of 16 bits.
EXCEPTION = np.uint32(1 << 31)


@inner
def _block_shape(chunks: Words, start: int, end: int, size: int, narrow: bool) -> tuple[int, int]:
    count = entries = end - start
    if narrow:
        group = start
        for i in range(start + 1, end + 1):
            if i == end or chunks[i] >> 6 != chunks[group] >> 6:
                entries += (i - group) & 1
                group = i
    bits = block_bytes(np.int64(BITS), entries, size, narrow)
    if count * FULL >= size or bits <= block_bytes(np.int64(LOWS), count, size, narrow):
        return BITS, entries
    return LOWS, count


@inner
def _put16(data: Bytes, at: int, value: int) -> None:
    data[at] = value & 255
    data[at + 1] = value >> 8


@inner
def _put32(data: Bytes, at: int, value: int) -> None:
    for i in range(4):
        data[at + i] = (value >> (8 * i)) & 255


@inner
def _put_bits(data: Bytes, at: int, bit: int, value: int) -> None:
    at += bit >> 3
    value <<= bit & 7
    while value:
        data[at] |= value & 255
        value >>= 8
        at += 1


@inner
def _put_code(data: Bytes, codes: int, entries: int, entry: int, code: int, place: int) -> None:
    if place < 0:
        _put_bits(data, codes, 4 * entry, code)
    else:
        data[codes + entry] = code
        _put_bits(data, codes + entries, 4 * entry, place)


@inner
def _put_block(
    data: Bytes, at: int, kind: int, entries: int, chunks: Words, codes: Bytes, places: Bytes, size: int
) -> None:
    """Write one window's postings at byte `at` of zeroed data. Without places (length 0) codes are narrow."""
    narrow = len(places) == 0
    count = len(chunks)
    first = at + head_bytes(kind, entries, size)
    width, marks, counts = lows_shape(entries, size)
    ranks = at + 8 * ((size + 63) // 64)
    entry, before = np.int64(0), np.int64(0)
    for i in range(count):
        here = chunks[i] & (WINDOW - 1)
        if kind == LOWS:
            bucket = here >> width
            _put_bits(data, at, entry + bucket, np.int64(1))
            _put_bits(data, at + marks + counts, entry * width, here & ((1 << width) - 1))
            for sample in range(before >> width >> SAMPLE_BITS, bucket >> SAMPLE_BITS):
                _put16(data, at + marks + 2 * sample, entry)
        else:
            if narrow and here >> 6 != before >> 6:
                entry += entry & 1
            data[at + (here >> 3)] |= 1 << (here & 7)
            for stride in range(before // RANK + 1, here // RANK + 1):
                _put16(data, ranks + 2 * stride, entry)
        _put_code(data, first, entries, entry, np.int64(codes[i]), np.int64(-1 if narrow else places[i]))
        before = here
        entry += 1
    if kind == LOWS:
        for sample in range(before >> width >> SAMPLE_BITS, counts // 2):
            _put16(data, at + marks + 2 * sample, entry)
    else:
        for stride in range(before // RANK + 1, (size + RANK - 1) // RANK):
            _put16(data, ranks + 2 * stride, entries)


@njit(cache=True)
def encode_lists(
    offsets: Numbers, chunks: Words, codes: Bytes, places: Bytes, chunk_count: int, data: Bytes, regions: Numbers
) -> int:
    """Write the regions of some terms into data; returns the bytes used.

    Term t has the postings offsets[t] .. offsets[t + 1] - 1 of chunks (ascending), codes (uint8) and places (uint8, or
    length 0, and codes narrow). regions[t] becomes the word at which it begins, or -1 for a term without postings.
    `data` must hold `max_region_bytes(postings, terms)` bytes.
    """
    narrow = len(places) == 0
    at = np.int64(0)
    kinds = np.empty((chunk_count >> WINDOW_BITS) + 1, np.int64)
    entries = np.empty_like(kinds)
    for t in range(len(offsets) - 1):
        start, end = offsets[t], offsets[t + 1]
        count = end - start
        regions[t] = -1
        if count == 0:
            continue
        regions[t] = at >> 2
        short = 4 + 4 * count + code_bytes(count, narrow)
        blocks = 0
        size_of_blocks = 8
        i = start
        while i < end and size_of_blocks < short:
            window = chunks[i] >> WINDOW_BITS
            first = i
            while i < end and chunks[i] >> WINDOW_BITS == window:
                i += 1
            size = min(WINDOW, chunk_count - (window << WINDOW_BITS))
            kinds[blocks], entries[blocks] = _block_shape(chunks, first, i, size, narrow)
            size_of_blocks += 4 + block_bytes(kinds[blocks], entries[blocks], size, narrow)
            blocks += 1
        if size_of_blocks >= short:
            data[at : at + short + 3] = 0
            _put32(data, at, count)
            for i in range(count):
                _put32(data, at + 4 + 4 * i, np.int64(chunks[start + i]))
                place = np.int64(-1 if narrow else places[start + i])
                _put_code(data, at + 4 + 4 * count, count, i, np.int64(codes[start + i]), place)
            at += short
        else:
            data[at : at + size_of_blocks + 3] = 0
            _put32(data, at, BLOCKS + blocks)
            _put32(data, at + 4, count)
            body = at + 8 + 4 * blocks
            i = start
            for block in range(blocks):
                window = chunks[i] >> WINDOW_BITS
                first = i
                while i < end and chunks[i] >> WINDOW_BITS == window:
                    i += 1
                size = min(WINDOW, chunk_count - (window << WINDOW_BITS))
                kind = kinds[block]
                _put32(data, at + 8 + 4 * block, (kind << 30) | (window << 16) | (entries[block] - 1))
                of_block = places if narrow else places[first:i]
                _put_block(data, body, kind, entries[block], chunks[first:i], codes[first:i], of_block, size)
                body += block_bytes(kind, entries[block], size, narrow)
            at = body
        at = (at + 3) // 4 * 4
    return int(at)


def max_region_bytes(postings: int, terms: int) -> int:
    """Return bytes that are enough for the regions of so many postings of so many terms: none is larger than a short
    list."""
    return 6 * postings + 16 * terms


@njit(nogil=True, cache=True)
def single_codes(lengths: Words, k1: float, b: float, mean_length: float, codes: Bytes) -> None:
    """Set for every chunk the code of a term that it has once."""
    for chunk in range(len(lengths)):
        codes[chunk] = frequency_code(np.int64(1), length_norm(lengths[chunk], k1, b, mean_length))


@njit(nogil=True, cache=True)
def frequency_codes(
    first: int, bounds: Numbers, chunks: Words, frequencies: Words, once: Bytes, lengths: Words, k1: float, b: float,
    mean_length: float, codes: Bytes,
) -> tuple[Numbers, Words]:  # fmt: skip
    """The codes of BM25 postings, and (keys, frequencies) of the exceptions in the postings' order.

    Term first + t has the postings bounds[t] .. bounds[t + 1] - 1; `once`: as `single_codes` fills it.
    """
    far = np.int64(0)
    for i in range(len(chunks)):
        chunk = chunks[i]
        frequency = np.int64(frequencies[i])
        if frequency == 1:
            codes[i] = once[chunk]
            continue
        norm = length_norm(lengths[chunk], k1, b, mean_length)
        codes[i] = frequency_code(frequency, norm)
        # Where the norm is 0 every frequency has the weight 1.
        if norm > 0 and codes[i] == NARROW_LAST and frequency > smallest_frequency(np.int64(NARROW_LAST), norm):
            frequencies[i] = EXCEPTION | frequency
            far += 1
    return _exceptions(first, bounds, chunks, frequencies, far)


@njit(nogil=True, cache=True)
def value_places(
    first: int, bounds: Numbers, chunks: Words, numbers: Words, codes_of_values: Bytes, first_of_codes: Words,
    codes: Bytes, places: Bytes,
) -> tuple[Numbers, Words]:  # fmt: skip
    """Codes and places of learned sparse postings, and (keys, value numbers) of the exceptions in their order.

    Term first + t has the postings bounds[t] .. bounds[t + 1] - 1.
    """
    far = np.int64(0)
    for i in range(len(numbers)):
        code = codes_of_values[numbers[i]]
        codes[i] = code
        place = numbers[i] - first_of_codes[code]
        places[i] = min(place, FAR)
        if place >= FAR:
            numbers[i] |= EXCEPTION
            far += 1
    return _exceptions(first, bounds, chunks, numbers, far)


@inner
def _exceptions(first: int, bounds: Numbers, chunks: Words, values: Words, count: int) -> tuple[Numbers, Words]:
    keys = np.empty(count, np.int64)
    exact = np.empty(count, np.uint32)
    at = 0
    for term in range(len(bounds) - 1):
        for i in range(bounds[term], bounds[term + 1]):
            if values[i] & EXCEPTION:
                keys[at] = (np.int64(first + term) << 32) | np.int64(chunks[i])
                exact[at] = values[i] ^ EXCEPTION
                at += 1
    return keys, exact
