"""Postings of one shard: collected chunk by chunk, then sorted by term and written as the posting file.

Memory holds the vocabulary, a number and a code per chunk, the BUFFER and one SLICE of the postings, however large the
shard is; what the BUFFER does not hold is collected on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ratchet.core.numba_cache import njit
from ratchet.index_build.encode import encode_lists, frequency_codes, max_region_bytes, single_codes, value_places
from ratchet.index_build.words import Growing, TermCounter
from ratchet.index_build.writing import FolderWriter
from ratchet.retrieval.arrays import Bytes, Floats, Halves, Numbers, Words
from ratchet.retrieval.index import NOT_THERE
from ratchet.retrieval.sparse.bits import OVERREAD
from ratchet.retrieval.sparse.quantisation import value_codes
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
        """Count the terms of the next chunks."""
        lengths, offsets, terms, frequencies = self._counter.count(texts)
        new = self._counter.hashes.values[len(self._partitions) :]
        self._partitions.extend(new >> np.uint64(60))
        self._spill.add(len(self._lengths), offsets, terms, frequencies, 1, self._partitions.values)
        self._lengths.extend(lengths)

    def write(self, files: FolderWriter) -> dict[str, Any]:
        """Write the posting file and what goes with it; returns the counts for the shard's manifest."""
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
        """Write the posting file and what goes with it; returns the counts for the shard's manifest."""
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
