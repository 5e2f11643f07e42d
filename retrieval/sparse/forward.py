"""The forward index of an approximate search: every chunk's own terms, to score a few chunks exactly.

A learned sparse index whose config asks for `search.recall` below 1 has, in rows/SHARD beside its shards,

    manifest.json    which shard they were made of, and each file's dtype, size and sha256
    rows             uint32: a chunk's terms, ascending, as term << 15 | value number, chunk after chunk
    row_ends         int64, one more than chunks: where each chunk's row begins, and the end of the last

The second phase of a search reads one place in memory for each chunk there, where the posting lists take one for each
term of the query. Rows hold exact weights, so both ways give the same scores to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ratchet.numba_cache import njit
from retrieval.index import Ranking
from retrieval.layout import RowsManifest, read_rows_manifest, rows_folder
from retrieval.shards import FileEntry, Shard, damaged
from retrieval.sparse.engine import Engine

VALUE_BITS = 15
# Rows have room for so many terms; the value numbers are bits of positive bfloat16s, which are fewer than 2^15.
MOST_VOCABULARY = 1 << (32 - VALUE_BITS)
# In postings that are added: what an entry of a row takes, and what selecting the chunk and finding its row takes.
ROW_ENTRY, ROW_START = 1.0, 500
# Entries of a row in a cache line, and chunks whose rows' places are fetched ahead.
LINE, AHEAD = 16, 8


class Rows:
    """The rows of one shard."""

    def __init__(self, folder: Path, manifest: RowsManifest, shard: Shard) -> None:
        self.rows, self.ends = (_mapped(folder / name, manifest.files[name]) for name in ("rows", "row_ends"))
        if len(self.ends) != len(shard) + 1 or len(self.rows) != self.ends[-1]:
            raise damaged(folder, "its files do not fit together")


def _mapped(path: Path, entry: FileEntry) -> Any:
    return np.asarray(np.memmap(path, entry.dtype, mode="r")) if entry.bytes else np.empty(0, entry.dtype)


def open_rows(folder: Path, shards: Sequence[Shard]) -> list[Rows] | None:
    """Open the rows of all shards of an index folder; None where a shard has none."""
    found = []
    for shard in shards:
        place = rows_folder(folder, shard.folder.name)
        manifest = read_rows_manifest(place, shard.manifest.digest)
        if manifest is None:
            return None
        found.append(Rows(place, manifest, shard))
    return found


class RowEngine(Engine):
    """A learned sparse index whose approximate searches score chunks by their rows."""

    def __init__(self, shards: Sequence[Shard], rows: Sequence[Rows], threads: int | None = None) -> None:
        super().__init__(shards, None, threads)
        self._rows = rows
        self._vocabulary = max((shard.manifest.terms for shard in shards), default=0)
        self._row_length = sum(len(each.rows) for each in rows) / max(len(self), 1)
        self._slots: list[np.ndarray] = []

    def _score(self, batch: Any, query: int, chunks: np.ndarray, k: int) -> Ranking:
        chunks = np.sort(chunks)
        scores = np.empty(len(chunks))
        span = slice(batch.offsets[query], batch.offsets[query + 1])
        try:
            slots = self._slots.pop()
        except IndexError:
            slots = np.zeros(self._vocabulary, np.uint16)
        for i, (shard, own) in enumerate(zip(self._shards, self._rows, strict=True)):
            begin = shard.shard.first_chunk
            low, high = np.searchsorted(chunks, [begin, begin + len(shard.shard)])
            if low < high:
                score_rows(
                    own.rows,
                    own.ends,
                    shard.tables[1],
                    batch.terms[i, span],
                    batch.weights[span],
                    chunks[low:high] - begin,
                    scores[low:high],
                    slots,
                )
        self._slots.append(slots)
        scores, chunks = scores[scores > 0], chunks[scores > 0]
        order = np.lexsort((chunks, -scores))[:k]
        return Ranking(scores[order], chunks[order])

    def _score_work(self, terms: int) -> float:
        return ROW_START + ROW_ENTRY * self._row_length


@intrinsic
def _prefetch(typing: Any, array: Any, at: Any) -> Any:
    """Have the cache line of array[at] fetched."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        place = builder.bitcast(builder.gep(data, [values[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        builder.call(prefetch, [place, number(0), number(3), number(1)])  # for reading, into all caches, of data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@njit(nogil=True, cache=True)
def score_rows(
    rows: Any, ends: Any, values: Any, terms: Any, weights: Any, chunks: Any, scores: Any, slots: Any
) -> None:
    """Set scores (float64) to the exact scores of some chunks of a shard, counted from its first.

    values: float32, the weight of every value number. slots: uint16 for every term of the vocabulary, all 0, and left
    so. Weights are added in ascending term order, as everywhere.
    """
    for i in range(len(terms)):
        if 0 <= terms[i] < len(slots):
            slots[terms[i]] = i + 1
    for j in range(len(chunks)):
        # Rows lie anywhere in memory: the next one is on its way while this one is read, a third of the time.
        if j + 1 < len(chunks):
            for at in range(ends[chunks[j + 1]], ends[chunks[j + 1] + 1], LINE):
                _prefetch(rows, at)
        if j + AHEAD < len(chunks):
            _prefetch(ends, chunks[j + AHEAD])
        score = 0.0
        for at in range(ends[chunks[j]], ends[chunks[j] + 1]):
            entry = rows[np.uint64(at)]
            slot = slots[np.uint64(entry >> np.uint32(VALUE_BITS))]
            if slot > 0:
                score += weights[slot - 1] * float(values[entry & np.uint32((1 << VALUE_BITS) - 1)])
        scores[j] = score
    for i in range(len(terms)):
        if 0 <= terms[i] < len(slots):
            slots[terms[i]] = 0
