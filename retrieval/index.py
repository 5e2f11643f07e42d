"""The search index that the rest of Ratchet uses: `Index` ranks its chunks by an engine and returns them as passages.

`Store` holds the chunks, and `Ranker` is the protocol of the engines. `retrieval.open_index` opens them.

A `Shard` has immutable files with checksums, memory-mapped; documents, and postings or vectors.

shard.json                      counts, and each file's dtype, size and sha256
document_ids, titles            string tables: NAME.offsets (int64, one more than strings), NAME.utf8
document_hashes                 uint64 ascending: hashes of the document ids; document_order: whose they are
texts.utf8, chunk_spans         all texts, and int64 pairs: a chunk is texts.utf8[start:end]
document_chunks                 int64, one more than documents: where each document's chunks begin
postings, regions               the posting file (postings.py); uint32 per term: its region, or NOT_THERE
exception_keys, exception_values  int64 ascending: term << 32 | chunk; uint32: what the code does not say
BM25: term_hashes               uint64 ascending, of the terms; lengths: uint32 per chunk
learned sparse: weights         float32 per value number; code_values: uint32 [256]; terms are vocabulary numbers
dense: faiss                    a faiss index of the chunks' vectors; Milvus: vectors, float32 [chunks, dimension]"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ratchet.core.records import Passage, content_key, document_id, with_title
from ratchet.retrieval.layout import ShardManifest, damaged
from ratchet.retrieval.retriever import BatchSearch

NOT_THERE = 0xFFFFFFFF


def key_hash(text: str) -> int:
    """BLAKE2b of the text's UTF-8 bytes, cut to 8 bytes, as a little-endian unsigned integer.

    Two keys can share a hash (at 29 million keys with odds of about 1 in 44,000): compare the keys where hashes meet.
    """
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def key_hashes(texts: Iterable[str]) -> np.ndarray:
    """`key_hash` of every text: uint64 [n]."""
    digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, "<u8").astype(np.uint64, copy=False)


def mapping_of(array: Any) -> mmap.mmap:
    """Return the mapping under an array of a file that is not empty."""
    while not isinstance(array, mmap.mmap):
        array = array.base
    return array


class Strings:
    """A memory-mapped table of strings."""

    def __init__(self, offsets: Any, blob: Any) -> None:
        self._offsets, self._blob = offsets, memoryview(blob)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, at: int) -> str:
        return bytes(self._blob[self._offsets[at] : self._offsets[at + 1]]).decode()

    def take(self, numbers: np.ndarray) -> list[str]:
        """Return several strings. numbers: int64 [n]."""
        spans = zip(self._offsets[numbers].tolist(), self._offsets[numbers + 1].tolist(), strict=True)
        return [bytes(self._blob[start:end]).decode() for start, end in spans]


class Shard:
    """A shard's documents and arrays. `first_chunk` and `first_document` are its places in the index."""

    def __init__(self, folder: Path, manifest: ShardManifest, first_chunk: int = 0, first_document: int = 0) -> None:
        self.folder = folder
        self.manifest = manifest
        self.first_chunk = first_chunk
        self.first_document = first_document
        self.document_ids = self.strings("document_ids")
        self.titles = self.strings("titles")
        texts = self.array("texts.utf8")
        if len(texts):
            # Passages lie anywhere: what the system reads beyond one is not worth the time, three times as long.
            mapping_of(texts).madvise(mmap.MADV_RANDOM)
        self._texts = memoryview(texts)
        self._chunk_spans = self.array("chunk_spans").reshape(-1, 2)
        self.document_chunks = self.array("document_chunks")
        if len(self._chunk_spans) != manifest.chunks or len(self.document_chunks) != manifest.documents + 1:
            raise damaged(folder, "its files do not fit together")

    def __len__(self) -> int:
        return self.manifest.chunks

    def array(self, name: str) -> Any:
        entry = self.manifest.files.get(name)
        if entry is None:
            raise damaged(self.folder, f"its manifest does not name {name}")
        if entry.bytes == 0:  # an empty file cannot be mapped
            array = np.empty(0, entry.dtype)
            array.flags.writeable = False
            return array
        return np.asarray(np.memmap(self.folder / name, entry.dtype, mode="r"))

    def strings(self, name: str) -> Strings:
        return Strings(self.array(f"{name}.offsets"), self.array(f"{name}.utf8"))

    def passage(self, chunk: int, score: float) -> Passage:
        """`chunk` counts from the shard's first."""
        document = int(np.searchsorted(self.document_chunks, chunk, side="right")) - 1
        document_id = self.document_ids[document]
        start, end = self._chunk_spans[chunk]
        return Passage(
            id=f"{document_id}#{chunk - int(self.document_chunks[document])}",
            document_id=document_id,
            title=self.titles[document],
            text=bytes(self._texts[start:end]).decode(),
            score=score,
        )

    def chunk_texts(self) -> Iterator[str]:
        """Yield what is indexed of each chunk: its text under its document's title."""
        texts = memoryview(self.array("texts.utf8"))  # mapped again, for reading in order
        for chunk in range(len(self)):
            document = int(np.searchsorted(self.document_chunks, chunk, side="right")) - 1
            start, end = self._chunk_spans[chunk]
            yield with_title(self.titles[document], bytes(texts[start:end]).decode())

    def find_documents(self, ids: Sequence[str]) -> np.ndarray:
        """Return the numbers, from the shard's first, of those of these documents that it has: int64, ascending."""
        hashes, order = self.array("document_hashes"), self.array("document_order")
        wanted = key_hashes(ids)
        at = np.searchsorted(hashes, wanted)
        numbers = []
        for i in np.flatnonzero(hashes[np.minimum(at, len(hashes) - 1)] == wanted) if len(hashes) else ():
            place = int(at[i])
            while place < len(hashes) and hashes[place] == wanted[i]:
                if self.document_ids[int(order[place])] == ids[int(i)]:
                    numbers.append(int(order[place]))
                place += 1
        return np.unique(np.array(numbers, np.int64))


@dataclass(frozen=True)
class Ranking:
    """The best chunks for one query, best first; equal scores in ascending chunk number."""

    scores: np.ndarray
    """float64 [n], descending."""
    chunks: np.ndarray
    """int64 [n], chunk numbers in the Store."""

    def __len__(self) -> int:
        return len(self.chunks)

    @staticmethod
    def empty() -> Ranking:
        return Ranking(np.empty(0), np.empty(0, np.int64))


class Ranker(Protocol):
    """An engine that ranks the chunks of a Store by number; it does not read their texts."""

    def __len__(self) -> int:
        """Return the number of chunks."""

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """Return at most k chunks for every query."""


class Store:
    """The chunks of an index with their ids and titles, memory-mapped; every engine refers to them by number."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = tuple(shards)
        self._first_chunks = [shard.first_chunk for shard in shards]

    @property
    def digest(self) -> str:
        """Equal digest, equal chunks under equal numbers."""
        names = ("document_ids.utf8", "document_ids.offsets", "texts.utf8", "chunk_spans", "document_chunks")
        return content_key([[shard.manifest.files[name].sha256 for name in names] for shard in self.shards])

    def __len__(self) -> int:
        return self.shards[-1].first_chunk + len(self.shards[-1]) if self.shards else 0

    def passage(self, chunk: int, score: float) -> Passage:
        shard = self._shard_of(chunk)
        return shard.passage(chunk - shard.first_chunk, score)

    def document_ids(self, chunks: np.ndarray) -> list[str]:
        """Return the id of each chunk's document. chunks: int64 [n]."""
        ids = [""] * len(chunks)
        shards = np.searchsorted(self._first_chunks, chunks, side="right") - 1
        for number in np.unique(shards):
            shard, at = self.shards[number], np.flatnonzero(shards == number)
            documents = np.searchsorted(shard.document_chunks, chunks[at] - shard.first_chunk, side="right") - 1
            for place, name in zip(at.tolist(), shard.document_ids.take(documents), strict=True):
                ids[place] = name
        return ids

    def chunk_texts(self) -> Iterator[str]:
        return (text for shard in self.shards for text in shard.chunk_texts())

    def _shard_of(self, chunk: int) -> Shard:
        return self.shards[bisect_right(self._first_chunks, chunk) - 1]

    def document_numbers(self, ids: Collection[str]) -> np.ndarray:
        """Return the numbers of those of these documents that are in the index: int64, ascending."""
        wanted = list(dict.fromkeys(map(document_id, ids)))
        parts = [shard.first_document + shard.find_documents(wanted) for shard in self.shards]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def chunks_of(self, document: str) -> range:
        """Return the numbers of a document's chunks; an empty range if it is not in the index."""
        for number in self.document_numbers([document]):
            shard = self.shards[bisect_right([shard.first_document for shard in self.shards], number) - 1]
            place = int(number) - shard.first_document
            first, last = (shard.first_chunk + int(at) for at in shard.document_chunks[place : place + 2])
            return range(first, last)
        return range(0)

    def documents(self, ids: Sequence[str]) -> list[Passage]:
        """Return the first chunk of each of these documents, with the score 0; those that are not here are left out."""
        chunks = (self.chunks_of(document) for document in ids)
        return [self.passage(own.start, 0.0) for own in chunks if own]


class Index(BatchSearch):
    """Chunks and an engine that ranks them by score, equal scores by chunk number; any number of threads may search it
    at once.

    Chunks that share no term with a query are not returned. Sparse and dense engines are exact at any depth:
    search(q, k, offset) == search(q, offset + k)[offset:].
    """

    def __init__(self, store: Store, ranker: Ranker, digest: str) -> None:
        self.store = store
        self.ranker = ranker
        self.digest = digest

    def __len__(self) -> int:
        return len(self.store)

    def _search(self, queries: Sequence[str], k: int, offset: int) -> list[list[Passage]]:
        return [
            [
                self.store.passage(int(chunk), float(score))
                for score, chunk in zip(ranking.scores[offset:], ranking.chunks[offset:], strict=True)
            ]
            for ranking in self.ranker.rank(queries, offset + k)
        ]


def store_of(retriever: object) -> Store | None:
    """Return the chunks that a retriever ranks, where they are on this machine."""
    store = getattr(retriever, "store", None)
    return store if isinstance(store, Store) else None
