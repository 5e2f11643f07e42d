"""Approximate search with files of its own: the postings that weigh most in each list, and every chunk's own terms.

A learned sparse index whose config asks for `search.recall` below 1 has, in approximate/SHARD beside its shards,

    manifest.json        which shard they were made of, and each file's dtype, size and sha256
    postings, regions    the posting file again, but each list has its postings of the largest weights only
    rows                 uint32: a chunk's terms, ascending, as term << 15 | value number, chunk after chunk
    row_ends             int64, one more than chunks: where each chunk's row begins, and the end of the last

The first phase adds up the short lists, whose length does not grow with the corpus, as Seismic (Bruch et al. 2024,
arXiv 2404.18812) cuts lists. The second reads the rows of the best chunks: one place in memory for each, where the
posting lists take one for each term of the query. Rows hold exact weights, so scores are those of the exact search to
the last bit.
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
from ratchet.records import content_key
from retrieval.index import Ranking
from retrieval.layout import RowsManifest, read_rows_manifest, rows_folder
from retrieval.sparse.engine import EXACT, Engine, Pruning, SparseQuery
from retrieval.sparse.shards import Shard, damaged

VALUE_BITS = 15
# Rows have room for so many terms; the value numbers are bits of positive bfloat16s, which are fewer than 2^15.
MOST_VOCABULARY = 1 << (32 - VALUE_BITS)
# What reading an entry of a row takes, in postings that are added, and what finding the row takes.
ROW_ENTRY, ROW_START = 1.0, 100
# Entries of a row in a cache line, and chunks whose rows' places are fetched ahead.
LINE, AHEAD = 16, 8


class ShortLists(Shard):
    """A shard with short lists in place of its own, and rows."""

    def __init__(self, folder: Path, manifest: RowsManifest, shard: Shard) -> None:
        self._rows = folder
        self._own = manifest.files
        self.kept = manifest.kept
        super().__init__(shard.folder, shard.manifest, shard.first_chunk, shard.first_document)
        self.rows, self.row_ends = self.array("rows"), self.array("row_ends")
        if len(self.row_ends) != len(shard) + 1 or len(self.rows) != self.row_ends[-1]:
            raise damaged(folder, "its files do not fit together")

    def array(self, name: str) -> Any:
        entry = self._own.get(name)
        if entry is None or not entry.bytes:
            return super().array(name) if entry is None else np.empty(0, entry.dtype)
        return np.asarray(np.memmap(self._rows / name, entry.dtype, mode="r"))


def short_lists(folder: Path, shards: Sequence[Shard]) -> list[ShortLists] | None:
    """The files of all shards of an index folder; None where one has none."""
    found = []
    for shard in shards:
        place = rows_folder(folder, shard.folder.name)
        manifest = read_rows_manifest(place, shard.manifest.digest)
        if manifest is None:
            return None
        found.append(ShortLists(place, manifest, shard))
    return found


class RowEngine(Engine):
    """A learned sparse index whose approximate searches read short lists and rows; exact ones are those of `Engine`."""

    def __init__(self, shards: Sequence[Shard], short: Sequence[ShortLists], threads: int | None = None) -> None:
        super().__init__(shards, None, threads)
        self._short = Engine(short, None, threads)
        self._rows = short
        self._vocabulary = max((shard.manifest.terms for shard in short), default=0)
        self._row_length = sum(len(shard.rows) for shard in short) / max(len(self), 1)
        self._slots: list[np.ndarray] = []
        self.first_phase = content_key([shard.kept for shard in short])

    def _promising(
        self,
        queries: Sequence[SparseQuery],
        batch: Any,
        pruning: Pruning,
        count: int,
        allowed: Sequence[np.ndarray] | None,
        threads: int,
    ) -> list[Ranking]:
        return self._short._promising(queries, self._short._prepare(queries), pruning, count, allowed, threads)

    def _score(self, batch: Any, query: int, chunks: np.ndarray, k: int) -> Ranking:
        chunks = np.sort(chunks)
        scores = np.empty(len(chunks))
        span = slice(batch.offsets[query], batch.offsets[query + 1])
        try:
            slots = self._slots.pop()
        except IndexError:
            slots = np.zeros(self._vocabulary, np.uint16)
        for i, shard in enumerate(self._rows):
            low, high = np.searchsorted(chunks, [shard.first_chunk, shard.first_chunk + len(shard)])
            if low < high:
                score_rows(
                    shard.rows,
                    shard.row_ends,
                    self._shards[i].tables[1],
                    batch.terms[i, span],
                    batch.weights[span],
                    chunks[low:high] - shard.first_chunk,
                    scores[low:high],
                    slots,
                )
        self._slots.append(slots)
        above = scores > 0
        scores, chunks = scores[above], chunks[above]
        order = np.lexsort((chunks, -scores))[:k]
        return Ranking(scores[order], chunks[order])

    def work(self, queries: Sequence[SparseQuery], k: int, pruning: Pruning = EXACT) -> float:
        """Estimate the work of a search, as `Engine.work` does."""
        if pruning == EXACT:
            return super().work(queries, k)
        batch = self._short._prepare(queries)
        lists = self._short._list_work(batch)[self._short._kept(batch, pruning)].sum()
        rows = len(queries) * pruning.candidates * min(k, len(self))
        return float(lists + rows * (ROW_START + ROW_ENTRY * self._row_length))


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
