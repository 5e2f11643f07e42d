"""Postings of one shard: collected chunk by chunk on the disk, then sorted by term and written as the posting file.

Memory holds the vocabulary, one number per chunk and one slice of the postings, however large the shard is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from index_build.encode import encode_lists, frequency_codes, max_region_bytes, value_places
from index_build.writing import FolderWriter
from ratchet.numba_cache import njit
from retrieval.sparse.analyzer import Analyzer
from retrieval.sparse.bits import OVERREAD
from retrieval.sparse.quantisation import value_codes
from retrieval.sparse.shards import NOT_THERE, key_hash

# Postings that are sorted in memory at once: about 30 bytes each.
SLICE = 1 << 23
# Files that postings are collected in, by ranges of terms, so that sorting reads each posting twice, not once a slice.
PARTITIONS = 16
# Rows that are held before they go to the files.
BUFFER = 1 << 20
STOP = -1


class Spill:
    """Rows of (term, chunk, value) in PARTITIONS temporary files of a folder; chunks come in ascending order."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / f"spill-{i:02d}" for i in range(PARTITIONS)]
        self._files = [path.open("wb") for path in self._paths]
        self._held: list[tuple[np.ndarray, np.ndarray]] = []
        self._rows = 0
        self.rows = 0

    def add(self, rows: np.ndarray, partitions: np.ndarray) -> None:
        """rows: uint32 [n, 3]; partitions: uint8 [n], which file each goes to."""
        self._held.append((rows, partitions))
        self._rows += len(rows)
        self.rows += len(rows)
        if self._rows >= BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            rows = np.concatenate([rows for rows, _ in self._held])
            partitions = np.concatenate([partitions for _, partitions in self._held])
            order = np.argsort(partitions, kind="stable")
            ends = np.cumsum(np.bincount(partitions, minlength=PARTITIONS))
            rows = rows[order]
            for i, file in enumerate(self._files):
                file.write(rows[ends[i - 1] if i else 0 : ends[i]].tobytes())
        self._held, self._rows = [], 0

    def partitions(self) -> Iterator[np.ndarray]:
        """The rows of each file, uint32 [n, 3]; the file is deleted when the next is asked for."""
        self._flush()
        for path, file in zip(self._paths, self._files, strict=True):
            file.close()
            size = path.stat().st_size // 12
            yield np.memmap(path, "<u4", mode="r", shape=(size, 3)) if size else np.empty((0, 3), "<u4")
            path.unlink()

    def close(self) -> None:
        for path, file in zip(self._paths, self._files, strict=True):
            file.close()
            path.unlink(missing_ok=True)


class _TermNumbers(dict[str, int]):
    """Word to the number of its term, in order of first sight; STOP for a stop word. Each word is stemmed once."""

    def __init__(self, words: Analyzer) -> None:
        self._words = words
        self.terms: dict[str, int] = {}
        self.hashes: list[int] = []

    def __missing__(self, word: str) -> int:
        term = self._words.term(word)
        number = STOP
        if term is not None:
            number = self.terms.setdefault(term, len(self.terms))
            if number == len(self.hashes):
                self.hashes.append(key_hash(term))
        self[word] = number
        return number


class Bm25Postings:
    """Collects the terms of chunks in chunk order; `write` makes the shard's files of them."""

    def __init__(self, words: Analyzer, folder: Path, k1: float, b: float) -> None:
        self._split = words.split
        self._numbers = _TermNumbers(words)
        self._spill = Spill(folder)
        self._k1, self._b = k1, b
        self._lengths: list[int] = []
        self._partitions = np.empty(0, np.uint8)

    def add(self, texts: Sequence[str]) -> None:
        """Count the terms of the next chunks."""
        numbers = self._numbers
        terms: list[int] = []
        lengths: list[int] = []
        for text in texts:
            before = len(terms)
            terms += [number for word in self._split(text) if (number := numbers[word]) != STOP]
            lengths.append(len(terms) - before)
        self.add_counted(np.array(terms, np.uint64), np.array(lengths, np.int64))

    def add_counted(self, terms: np.ndarray, lengths: np.ndarray) -> None:
        chunks = np.repeat(np.arange(len(self._lengths), len(self._lengths) + len(lengths), dtype=np.uint64), lengths)
        self._lengths += lengths.tolist()
        keys, counts = np.unique(chunks << np.uint64(32) | terms, return_counts=True)
        rows = np.empty((len(keys), 3), "<u4")
        rows[:, 0] = keys & np.uint64(0xFFFFFFFF)
        rows[:, 1] = keys >> np.uint64(32)
        rows[:, 2] = counts
        self._spill.add(rows, self._partitions_of(rows[:, 0]))

    def _partitions_of(self, terms: np.ndarray) -> np.ndarray:
        hashes = self._numbers.hashes
        known = len(self._partitions)
        if len(hashes) > known:
            new = np.array(hashes[known:], np.uint64) >> np.uint64(60)
            self._partitions = np.concatenate([self._partitions, new.astype(np.uint8)])
        return self._partitions[terms]

    def write(self, files: FolderWriter) -> dict[str, Any]:
        """Write the posting file and what goes with it; returns the counts for the shard's manifest."""
        # Terms stand in the order of their hashes, which a search finds them by.
        hashes = np.array(self._numbers.hashes, np.uint64)
        order = np.argsort(hashes)
        terms = list(self._numbers.terms)
        if len(hashes) > 1 and (hashes[order][1:] == hashes[order][:-1]).any():
            raise RuntimeError("two terms share a 64-bit hash; leave one of the documents that hold them out")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        lengths = np.array(self._lengths, np.uint32)
        mean = float(lengths.sum(dtype=np.int64)) / max(len(lengths), 1) or 1.0
        files.array("term_hashes", "<u8").append(hashes[order])
        files.strings("terms").extend([terms[i] for i in order])
        files.array("lengths", "<u4").append(lengths)

        def code(
            terms: np.ndarray, chunks: np.ndarray, values: np.ndarray, codes: np.ndarray, places: np.ndarray
        ) -> Any:
            return frequency_codes(terms, chunks, values, lengths, self._k1, self._b, mean, codes)

        _write_lists(files, self._spill, rank, len(lengths), code, placed=False)
        total = int(lengths.sum(dtype=np.int64))
        return {"terms": len(terms), "postings": self._spill.rows, "total_length": total, "top": 1.0}

    def close(self) -> None:
        self._spill.close()


class SparsePostings:
    """Collects learned sparse vectors in chunk order; `write` makes the shard's files of them.

    A posting's value is a number with an ascending float32 weight; `weights` gives the weight of every number.
    """

    def __init__(self, folder: Path, vocabulary: int, weights: np.ndarray) -> None:
        self._spill = Spill(folder)
        self._vocabulary = vocabulary
        self._weights = weights
        self._largest = 0
        self._chunks = 0

    def add(self, offsets: np.ndarray, terms: np.ndarray, values: np.ndarray) -> None:
        """The next chunks' vectors: row i has terms[offsets[i]:offsets[i + 1]] and, beside them, value numbers."""
        rows = np.empty((len(terms), 3), "<u4")
        rows[:, 0] = terms
        rows[:, 1] = np.repeat(np.arange(self._chunks, self._chunks + len(offsets) - 1), np.diff(offsets))
        rows[:, 2] = values
        rows = rows[self._weights[values] > 0]
        self._chunks += len(offsets) - 1
        if len(rows):
            self._largest = max(self._largest, int(rows[:, 2].max()))
            self._spill.add(rows, (rows[:, 0].astype(np.uint64) * PARTITIONS // self._vocabulary).astype(np.uint8))

    def write(self, files: FolderWriter) -> dict[str, Any]:
        """Write the posting file and what goes with it; returns the counts for the shard's manifest."""
        weights = self._weights[: self._largest + 1].astype(np.float32)
        if not len(weights) or weights[-1] <= 0:
            weights = np.array([0, 1], np.float32)
        codes_of_values, first_of_codes = value_codes(weights)
        files.array("weights", "<f4").append(weights)
        files.array("code_values", "<u4").append(first_of_codes)

        def code(
            terms: np.ndarray, chunks: np.ndarray, values: np.ndarray, codes: np.ndarray, places: np.ndarray
        ) -> Any:
            return value_places(terms, chunks, values, codes_of_values, first_of_codes, codes, places)

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


def _write_lists(
    files: FolderWriter, spill: Spill, rank: np.ndarray, chunk_count: int, code: Any, placed: bool
) -> None:
    """Sort the rows by the rank of their terms and write the regions, slice by slice."""
    data_file, regions_file = files.array("postings", "|u1"), files.array("regions", "<u4")
    keys_file, values_file = files.array("exception_keys", "<i8"), files.array("exception_values", "<u4")
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
            terms = np.repeat(np.arange(done + first, done + last, dtype=np.uint32), np.diff(bounds))
            codes = np.empty(len(chunks), np.uint8)
            places = np.empty(len(chunks) if placed else 0, np.uint8)
            keys, exceptions = code(terms, chunks, values, codes, places)
            data = np.zeros(max_region_bytes(len(chunks), last - first), np.uint8)
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
def _count(rows: Any, rank: Any, first: int, frequencies: Any) -> int:
    """Postings of every term from rank `first` on; returns one more than the largest rank seen, less `first`."""
    end = 0
    for i in range(len(rows)):
        at = rank[rows[i, 0]] - first
        frequencies[at] += 1
        end = max(end, at + 1)
    return end


@njit(cache=True)
def _sort(rows: Any, rank: Any, first: int, last: int, slots: Any, chunks: Any, values: Any) -> None:
    """One slice of a stable counting sort: postings of the terms of ranks first .. last - 1, in chunk order."""
    for i in range(len(rows)):
        at = rank[rows[i, 0]] - first
        if 0 <= at < last - first:
            slot = slots[at]
            slots[at] = slot + 1
            chunks[slot] = rows[i, 1]
            values[slot] = rows[i, 2]
