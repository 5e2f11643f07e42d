"""The chunks of an index: their texts, ids and titles, memory-mapped. Every engine ranks the same chunks by number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ratchet.errors import UserError
from ratchet.records import Passage, content_key
from retrieval.sparse.shards import Shard


class Store:
    def __init__(self, shards: Sequence[Shard], removed: np.ndarray) -> None:
        """`removed`: int64 ascending, numbers of documents that are not to be found any more."""
        self.shards = tuple(shards)
        self._first_chunks = [shard.first_chunk for shard in shards]
        self.removed = removed

    @property
    def digest(self) -> str:
        """Equal digest, equal chunks under equal numbers."""
        names = ("document_ids.utf8", "document_ids.offsets", "texts.utf8", "chunk_spans", "document_chunks")
        return content_key([[shard.manifest.files[name].sha256 for name in names] for shard in self.shards])

    def __len__(self) -> int:
        """Number of chunks, those of removed documents included: numbers never change."""
        return self.shards[-1].first_chunk + len(self.shards[-1]) if self.shards else 0

    def passage(self, chunk: int, score: float) -> Passage:
        shard = self._shard_of(chunk)
        return shard.passage(chunk - shard.first_chunk, score)

    def chunk_texts(self, first: int, last: int) -> Iterator[str]:
        """What is indexed of chunks first .. last - 1."""
        while first < last:
            shard = self._shard_of(first)
            end = min(last, shard.first_chunk + len(shard))
            yield from shard.chunk_texts(first - shard.first_chunk, end - shard.first_chunk)
            first = end

    def _shard_of(self, chunk: int) -> Shard:
        return self.shards[bisect_right(self._first_chunks, chunk) - 1]

    def document_numbers(self, ids: Collection[str]) -> np.ndarray:
        """Numbers of those of these documents that are there and not removed: int64, ascending."""
        wanted = list(dict.fromkeys(ids))
        found = [shard.first_document + shard.find_documents(wanted) for shard in self.shards]
        numbers = np.concatenate(found) if found else np.empty(0, np.int64)
        return numbers[~np.isin(numbers, self.removed)]

    def chunks_of(self, document: str) -> range:
        """Numbers of a document's chunks: none where it is not there, or removed."""
        for number in self.document_numbers([document]):
            shard = self.shards[bisect_right([shard.first_document for shard in self.shards], number) - 1]
            place = int(number) - shard.first_document
            first, last = (shard.first_chunk + int(at) for at in shard.document_chunks[place : place + 2])
            return range(first, last)
        return range(0)

    def allowed(self, documents: Collection[str] | None) -> list[np.ndarray] | None:
        """For every shard a uint8 per chunk, 1 where it may be found; None where all may. `documents`: only these."""
        if documents is None and not len(self.removed):
            return None
        if isinstance(documents, str):
            raise UserError("documents must be a collection of document ids, not one string")
        numbers = self.removed if documents is None else self.document_numbers(documents)
        masks = []
        for shard in self.shards:
            mask = np.full(len(shard), documents is None, np.uint8)
            low, high = np.searchsorted(
                numbers, [shard.first_document, shard.first_document + shard.manifest.documents]
            )
            for number in numbers[low:high] - shard.first_document:
                mask[shard.document_chunks[number] : shard.document_chunks[number + 1]] = documents is not None
            mask.flags.writeable = False
            masks.append(mask)
        return masks
