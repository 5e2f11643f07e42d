"""One shard of an index: immutable files with checksums, memory-mapped; documents, and postings or vectors.

shard.json                      counts, and each file's dtype, size and sha256
document_ids, titles            string tables: NAME.offsets (int64, one more than strings), NAME.utf8
document_hashes                 uint64 ascending: hashes of the document ids; document_order: whose they are
texts.utf8, chunk_spans         all texts, and int64 pairs: a chunk is texts.utf8[start:end]
document_chunks                 int64, one more than documents: where each document's chunks begin
postings, regions               the posting file (postings.py); uint32 per term: its region, or NOT_THERE
exception_keys, exception_values  int64 ascending: term << 32 | chunk; uint32: what the code does not say
BM25: term_hashes               uint64 ascending, of the terms; lengths: uint32 per chunk
learned sparse: weights         float32 per value number; code_values: uint32 [256]; terms are vocabulary numbers
dense: faiss                    a faiss index of the chunks' vectors; Milvus: vectors, float32 [chunks, dimension]
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.core.records import Passage, with_title
from ratchet.retrieval.shard_manifest import ShardManifest, damaged

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
    """The mapping under an array of a file that is not empty."""
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
        """Number of chunks."""
        return self.manifest.chunks

    def array(self, name: str) -> Any:
        """One file as a read-only array, memory-mapped."""
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

    def chunk_texts(self, first: int = 0, last: int | None = None) -> Iterator[str]:
        """What is indexed of chunks first .. last - 1: the chunk's text under its document's title."""
        texts = memoryview(self.array("texts.utf8"))  # mapped again, for reading in order
        for chunk in range(first, len(self) if last is None else last):
            document = int(np.searchsorted(self.document_chunks, chunk, side="right")) - 1
            start, end = self._chunk_spans[chunk]
            yield with_title(self.titles[document], bytes(texts[start:end]).decode())

    def find_documents(self, ids: Sequence[str]) -> np.ndarray:
        """Numbers, from the shard's first, of those of these documents that it has: int64, ascending."""
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
