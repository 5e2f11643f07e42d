"""Several indexes searched as one: their rankings combined by reciprocal rank fusion.

Source: Cormack, Clarke and Büttcher 2009, "Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank Learning
Methods" (SIGIR): a passage scores the sum of 1 / (k + rank) over the rankings that hold it, with k = 60.

Exactness: the first `depth` passages of each part are fused, exactly and in a fixed order, so that pages of one search
fit together, and equal parts give equal results. It is the fusion of the parts' whole rankings only where `depth` is as
large as these. A part is as exact as its own engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.core.config import FusionConfig
from ratchet.core.errors import UserError
from ratchet.core.records import PartRank, Passage
from ratchet.retrieval.index import Index, Store
from ratchet.retrieval.layout import fused_digest
from ratchet.retrieval.retriever import BatchSearch, Retriever, search_batch

Hit = tuple[Any, float]
"""A chunk's number in the parts' common store, or a passage; and its score."""


class FusedIndex(BatchSearch):
    """A Retriever over others; any number of threads may search it at once."""

    def __init__(self, parts: Mapping[str, Retriever], config: FusionConfig) -> None:
        """`parts` by name; the order decides between equal scores."""
        self.parts = dict(parts)
        self._config = config
        self.digest = fused_digest(config, {name: part.digest for name, part in parts.items()})
        stores = [part.store if isinstance(part, Index) else None for part in parts.values()]
        first = stores[0]
        self.store: Store | None = None
        """The chunks of the parts, where all of them are indexes of the same chunks on this machine."""
        if first is not None and all(store is not None and store.digest == first.digest for store in stores):
            self.store = first

    def _search(self, queries: Sequence[str], k: int, offset: int) -> list[list[Passage]]:
        """Raises UserError where two parts have different texts under one id."""
        found = {name: self._hits(part, queries) for name, part in self.parts.items()}
        return [
            self._fuse({name: hits[at] for name, hits in found.items()}, offset, offset + k)
            for at in range(len(queries))
        ]

    def _hits(self, part: Retriever, queries: Sequence[str]) -> list[list[Hit]]:
        depth = self._config.depth
        if self.store is not None and isinstance(part, Index):  # the texts of a few are read, later
            rankings = part.ranker.rank(queries, depth)
            return [list(zip(one.chunks.tolist(), one.scores.tolist(), strict=True)) for one in rankings]
        return [[(passage, passage.score) for passage in found] for found in search_batch(part, queries, depth)]

    def _fuse(self, found: Mapping[str, Sequence[Hit]], first: int, last: int) -> list[Passage]:
        chunks: dict[int | str, Any] = {}
        ranks: dict[int | str, dict[str, tuple[int, float]]] = {}
        for name, hits in found.items():
            for rank, (chunk, score) in enumerate(hits, 1):
                key = chunk.id if isinstance(chunk, Passage) else chunk
                known = chunks.setdefault(key, chunk)
                if isinstance(known, Passage) and known.text != chunk.text:
                    raise UserError(
                        f"index.parts: {name} has another text under the id {key} than {next(iter(ranks[key]))}: the "
                        "parts were cut into different chunks; build them together with `ratchet index`, or with equal "
                        "tokenizer, chunk_tokens and chunk_overlap"
                    )
                ranks.setdefault(key, {}).setdefault(name, (rank, score))
        # fsum, which rounds once, so that equal ranks make equal scores whatever the order of the parts.
        scores = {key: math.fsum(1 / (self._config.k + rank) for rank, _ in own.values()) for key, own in ranks.items()}
        best = sorted(scores, key=lambda key: -scores[key])[first:last]  # stable: of equal ones the first found
        return [self._passage(chunks[key], scores[key], ranks[key]) for key in best]

    def _passage(self, chunk: Any, score: float, ranks: Mapping[str, tuple[int, float]]) -> Passage:
        passage = chunk if isinstance(chunk, Passage) else self.store.passage(chunk, score)  # type: ignore[union-attr]
        own = {name: PartRank(rank=rank, score=value) for name, (rank, value) in ranks.items()}
        return passage.model_copy(update={"score": score, "ranks": own})
