"""Dense retrieval with faiss: chunks ranked by the inner product of their vectors with the query's.

Every shard has a faiss index of its own, in faiss's file format and memory-mapped where faiss can do that (`Flat`,
inverted lists); a vector's number is that of its chunk in the shard. The default, `Flat`, is exact: faiss finds every
chunk that the rounding of float32 could have kept out of the best k, and these are scored in float64.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.core.errors import UserError, first_line
from ratchet.core.installed import install
from ratchet.retrieval.arrays import Doubles, Floats, Numbers
from ratchet.retrieval.index import Ranking

FILE = "faiss"
"""A shard's file."""
QUERY_GROUP = 256
SPARE = 16
"""Further ranks that are asked for, so that ties at the end seldom need a second search."""
SCORED_AT_ONCE = 1 << 22
"""Numbers of the vectors that are scored exactly at once."""
GPU_MAX_K = 2048
"""faiss's own limit."""

logger = logging.getLogger(__name__)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise UserError(f"index.kind: dense needs faiss: {install('dense')}") from error
    return faiss


def new_index(dimension: int, factory: str) -> Any:
    """Make an empty faiss index of this many dimensions by a string for faiss's `index_factory`, such as `Flat`."""
    faiss = _faiss()
    try:
        return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UserError(
            f"index.faiss: {factory!r} is not a string for faiss's index_factory, or does not suit vectors of "
            f"{dimension} dimensions ({first_line(error)}); `Flat` is exact"
        ) from error


def build_faiss(dimension: int, factory: str, parts: Callable[[], Iterable[Floats]], append: Any) -> None:
    """Write the index of a shard's vectors (float32 [n_i, dimension]) by `append`, which takes bytes.

    An index with clusters is trained on all of the shard's vectors; a shard with too few for that becomes `Flat`.
    """
    faiss, index = _faiss(), new_index(dimension, factory)
    if not index.is_trained:
        vectors = np.concatenate([*parts(), np.empty((0, dimension), np.float32)])
        try:
            index.train(vectors)
        except RuntimeError as error:
            logger.warning(
                "a shard of %d vectors is too small for index.faiss: %s (%s); it is searched exactly",
                len(vectors),
                factory,
                first_line(error),
            )
            index = new_index(dimension, "Flat")
    for part in parts():
        index.add(part)
    faiss.write_index(index, faiss.PyCallbackIOWriter(append))


class DenseRanker:
    """Chunks ranked by the inner products of vectors; threads may call it at once.

    Where every shard is `Flat`, the ranking is exact, equal scores come in ascending chunk number, and a score depends
    on the two vectors alone, not on shards, threads or other queries. Other indexes have faiss's own scores.
    """

    def __init__(
        self,
        files: Sequence[Path],
        encode_queries: Callable[[Sequence[str]], Floats],
        parameters: str = "",
        gpu: bool = False,
        longest: float = 1.0,
    ) -> None:
        """`files` are the shards' indexes; chunk numbers run through them in order. `encode_queries` gives float32
        [n, dimension]. `parameters`: faiss's for a search, such as `nprobe=16`. `gpu`: search on all GPUs that this
        build of faiss can use. `longest`: the length of the longest vector."""
        faiss = _faiss()
        shards = [faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC) for file in files]
        if len({shard.d for shard in shards}) > 1:
            raise UserError("the shards of dense vectors do not have the same dimension; build the index again")
        flat = [isinstance(shard, faiss.IndexFlat) for shard in shards]
        try:
            for shard in (shard for shard, is_flat in zip(shards, flat, strict=True) if parameters and not is_flat):
                faiss.ParameterSpace().set_index_parameters(shard, parameters)
        except RuntimeError as error:
            raise UserError(f"index.faiss_search: {parameters!r}: {first_line(error)}") from error
        self.dimension: int = shards[0].d
        self._encode = encode_queries
        self._longest = longest
        self._firsts = np.cumsum([0, *(shard.ntotal for shard in shards)])
        self._shards = shards  # which own the memory of the rows
        self._rows = [
            faiss.rev_swig_ptr(shard.get_xb(), shard.ntotal * shard.d).reshape(-1, shard.d) if shard.ntotal else None
            for shard in (shards if all(flat) else ())
        ]
        self._index = _join_shards(faiss, shards)
        self._on_gpu = gpu and faiss.get_num_gpus() > 0
        on_gpus = [faiss.index_cpu_to_all_gpus(shard) for shard in shards] if self._on_gpu else []
        self._gpu = _join_shards(faiss, on_gpus) if self._on_gpu else None

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """Return the best k for every query; fewer where an index that is not exact finds no more."""
        if k < 0:
            raise ValueError(f"k must not be negative, got {k}")
        k = min(k, len(self))
        if k == 0 or not queries:
            return [Ranking.empty() for _ in queries]
        vectors = np.asarray(self._encode(queries), np.float32)
        if vectors.shape != (len(queries), self.dimension):
            raise UserError(
                f"the index has vectors of {self.dimension} dimensions, and the model gives {vectors.shape[1]}: it is "
                "not the model that the index was built with; set that one, or build the index again"
            )
        rank = self._rank_exactly if self._rows else self._rank_as_faiss
        groups = (vectors[first : first + QUERY_GROUP] for first in range(0, len(queries), QUERY_GROUP))
        return [ranking for group in groups for ranking in rank(group, k)]

    def _search(self, vectors: Floats, k: int) -> tuple[Floats, Numbers]:
        index: Any = self._gpu if self._on_gpu and k <= GPU_MAX_K else self._index
        scores, chunks = index.search(vectors, k)
        return scores, chunks

    def _rank_as_faiss(self, vectors: Floats, k: int) -> list[Ranking]:
        found = zip(*self._search(vectors, k), strict=True)
        return [_best(chunks[chunks >= 0], scores[chunks >= 0].astype(np.float64), k) for scores, chunks in found]

    def _rank_exactly(self, vectors: Floats, k: int) -> list[Ranking]:
        # The float32 product of unit vectors is off by at most dimension * 2**-24 (a little more, as lengths are
        # rounded, too), and that of others by their lengths' product times that; what is that far below the k-th best
        # score, twice, is not among the best k.
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1) * self._longest
        margins = 2.1 * self.dimension * 2.0**-24 * np.maximum(lengths, 1.0)
        rankings = [Ranking.empty()] * len(vectors)
        left, wanted = np.arange(len(vectors)), min(k + SPARE, len(self))
        while len(left):
            scores, chunks = self._search(vectors[left], wanted)
            limits = scores[:, k - 1] - margins[left]
            done = (scores[:, -1] < limits) | (wanted == len(self))
            for at in np.flatnonzero(done):
                candidates = np.sort(chunks[at][scores[at] >= limits[at]])
                exact = self._scores(candidates, vectors[left[at]].astype(np.float64))
                rankings[left[at]] = _best(candidates, exact, k)
            left, wanted = left[~done], min(4 * wanted, len(self))
        return rankings

    def _scores(self, chunks: Numbers, vector: Doubles) -> Doubles:
        """Inner products in float64, in which the product of two float32 numbers is exact; `chunks` ascend."""
        parts: list[Doubles] = []
        step = max(1, SCORED_AT_ONCE // self.dimension)
        for rows, first, end in zip(self._rows, self._firsts, self._firsts[1:], strict=False):
            if rows is None:  # an empty shard
                continue
            here = chunks[np.searchsorted(chunks, first) : np.searchsorted(chunks, end)] - first
            parts += [
                (rows[here[at : at + step]].astype(np.float64) * vector).sum(axis=1) for at in range(0, len(here), step)
            ]
        return np.concatenate(parts)


def _join_shards(faiss: Any, shards: Sequence[Any]) -> Any:
    """Make one index over the shards, searched side by side, with the numbers of one following those of another."""
    whole = faiss.IndexShards(shards[0].d, len(shards) > 1, True)
    for shard in shards:
        whole.add_shard(shard)
    return whole


def _best(chunks: Numbers, scores: Doubles, k: int) -> Ranking:
    best = np.lexsort((chunks, -scores))[:k]
    return Ranking(scores[best], chunks[best])
