"""What the rest of Ratchet sees of retrieval: a Retriever, and the index on disk that is one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Protocol

import numpy as np

from ratchet.records import Passage
from retrieval.kernel import top_chunks
from retrieval.layout import Manifest, Strings, damaged, map_array, read_manifest
from retrieval.words import Words


class Retriever(Protocol):
    digest: str
    """Equal digest, equal results for every query."""

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        """Ranks offset .. offset + k - 1 for a query, fewer where no more passages match."""
        ...


class Index:
    """A BM25 index, memory-mapped; any number of threads may search it at once.

    Scores are those of Lucene since version 8, with exact lengths: the sum over query terms, repeats counted, of
    idf * tf / (tf + k1 * (1 - b + b * length / mean length)), where idf = log(1 + (N - df + 0.5) / (df + 0.5)) and a
    chunk's length counts its terms, the title's included.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self.digest = manifest.digest
        self._words = Words(manifest.settings.stemmer, manifest.settings.stop_words)
        self._document_ids = Strings(folder, manifest, "document_ids")
        self._titles = Strings(folder, manifest, "titles")
        self._terms = Strings(folder, manifest, "terms")
        self._texts = memoryview(map_array(folder, manifest, "texts.utf8"))
        self._chunk_spans = map_array(folder, manifest, "chunk_spans").reshape(-1, 2)
        self._document_chunks = map_array(folder, manifest, "document_chunks")
        self._posting_offsets = map_array(folder, manifest, "posting_offsets")
        self._posting_chunks = map_array(folder, manifest, "posting_chunks")
        self._posting_weights = map_array(folder, manifest, "posting_weights")
        # The kernel does not check bounds, so what would lead it astray is checked here as far as that is cheap.
        if (
            len(self._chunk_spans) != manifest.chunks
            or len(self._posting_offsets) != len(self._terms) + 1
            or self._posting_offsets[-1] != len(self._posting_chunks)
            or len(self._posting_chunks) != len(self._posting_weights)
        ):
            raise damaged(folder, "its files do not fit together")

    def __len__(self) -> int:
        """Number of chunks."""
        return self.manifest.chunks

    def search(self, query: str, k: int, offset: int = 0) -> list[Passage]:
        """Ranks offset .. offset + k - 1: by score, ties by chunk order, chunks that share no term left out.

        Exact at any depth: search(q, k, offset) == search(q, offset + k)[offset:].
        """
        if k < 0 or offset < 0:
            raise ValueError(f"k and offset must not be negative, got k={k}, offset={offset}")
        found = Counter(at for term in self._words.terms(query) if (at := self._terms.find(term)) is not None)
        keep = min(offset + k, len(self))
        if not found or keep <= offset:
            return []
        # Term order, not query order: the same words in another order get the same scores to the last bit.
        terms = np.array(sorted(found), np.int64)
        scores, chunks = top_chunks(
            self._posting_offsets[terms],
            self._posting_offsets[terms + 1],
            np.array([found[term] for term in terms], np.float32),
            self._posting_chunks,
            self._posting_weights,
            len(self),
            keep,
        )
        ranked = np.lexsort((chunks, -scores))[offset:]
        return [self._passage(int(chunks[i]), float(scores[i])) for i in ranked]

    def _passage(self, chunk: int, score: float) -> Passage:
        document = int(np.searchsorted(self._document_chunks, chunk, side="right")) - 1
        document_id = self._document_ids[document]
        start, end = self._chunk_spans[chunk]
        return Passage(
            id=f"{document_id}#{chunk - int(self._document_chunks[document])}",
            document_id=document_id,
            title=self._titles[document],
            text=bytes(self._texts[start:end]).decode(),
            score=score,
        )


def open_index(path: str | Path) -> Index:
    """Open an index folder. No index there, or a damaged one, is a UserError that says what to do."""
    folder = Path(path)
    return Index(folder, read_manifest(folder))
