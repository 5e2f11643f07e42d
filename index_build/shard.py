"""Building one shard: some documents of one source, cut into chunks, with postings or vectors."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ratchet.core.errors import UserError
from ratchet.core.files import new_folder
from ratchet.core.locks import Lock
from ratchet.core.records import Document
from ratchet.index_build.chunks import Chunker, chunk_texts
from ratchet.index_build.documents import read_documents
from ratchet.index_build.plan import PlannedShard
from ratchet.retrieval.index import key_hashes
from ratchet.retrieval.layout import FileEntry, ShardManifest

# Documents that are tokenised together.
BATCH = 64


class ContentWriter(Protocol):
    """Writes what is made of the chunks' texts, beside the texts themselves."""

    def add(self, texts: Sequence[str]) -> None:
        """Add the next chunks, by what is indexed of each."""

    def write(self, files: FolderWriter) -> dict[str, Any]:
        """Write its files; returns terms, postings, total_length and top for the shard's manifest."""

    def close(self) -> None: ...


def build_shard(
    target: Path,
    piece: PlannedShard,
    settings: str,
    chunker: Chunker,
    content: Callable[[Path], ContentWriter],
    advance: Callable[[int], None],
) -> ShardManifest:
    """Build a planned shard at `target`, which appears complete or not at all.

    `settings` is the key of the index settings; `content` makes the shard's content, given a folder for temporary
    files; `advance` is called with the number of documents that were done.
    """
    # The lock lies beside the folder: inside, it would have to be deleted a moment before the folder has its name.
    with Lock(lock_of(target), f"the shard {target}", wait=0), new_folder(target) as folder:
        files = FolderWriter(folder)
        cut_chunks = cut_tokens = 0
        inner = content(folder)
        try:
            documents = ShardDocuments(files)
            read = (document for _, document in read_documents(Path(piece.source.path), piece.first))
            for batch in _batches(islice(read, piece.count)):
                texts, titles = zip(*((document.text, document.title) for document in batch), strict=True)
                spans, (chunks, tokens) = chunker.cut_and_count(texts, titles)
                inner.add(documents.add(batch, spans))
                cut_chunks, cut_tokens = cut_chunks + chunks, cut_tokens + tokens
                advance(len(batch))
            if documents.count != piece.count:
                raise UserError(
                    f"{piece.source.path}: has changed since this build started; delete {target.parent.parent} and "
                    "rebuild the index"
                )
            documents.finish()
            counts = inner.write(files)
            entries = files.finish()
        finally:
            files.close()
            inner.close()
        manifest = ShardManifest(
            settings=settings,
            source=piece.source.path,
            source_sha256=piece.source.sha256,
            first=piece.first,
            documents=documents.count,
            chunks=documents.chunks,
            files=entries,
            cut={chunker.limit.encoder: (cut_chunks, cut_tokens)} if chunker.limit is not None else {},
            **counts,
        )
        manifest.write(folder)
    return manifest


class ShardDocuments:
    """Writes documents and chunks of a shard."""

    def __init__(self, files: FolderWriter) -> None:
        self._files = files
        self._ids, self._titles = files.strings("document_ids"), files.strings("titles")
        self._texts, self._spans = files.array("texts.utf8", "|u1"), files.array("chunk_spans", "<i8")
        self._document_chunks = files.array("document_chunks", "<i8")
        self._document_chunks.append([0])
        self._hashes: list[np.ndarray] = []
        self.chunks = 0

    @property
    def count(self) -> int:
        return sum(map(len, self._hashes))

    def add(self, batch: Sequence[Document], cuts: Sequence[Sequence[tuple[int, int]]]) -> list[str]:
        """Write some documents; returns the text that is indexed of each of their chunks."""
        ids = [document.id for document in batch]
        self._ids.extend(ids)
        self._titles.extend([document.title for document in batch])
        self._hashes.append(key_hashes(ids))
        slices: list[str] = []
        ends: list[int] = []
        for document, spans in zip(batch, cuts, strict=True):
            self._spans.append(self._texts.bytes + byte_positions(document.text)[np.array(spans)])
            self._texts.append(document.text.encode())
            slices += chunk_texts(document.text, document.title, spans)
            ends.append(self.chunks + len(slices))
        self._document_chunks.append(ends)
        self.chunks += len(slices)
        return slices

    def finish(self) -> None:
        hashes = np.concatenate(self._hashes) if self._hashes else np.empty(0, np.uint64)
        order = np.argsort(hashes, kind="stable")
        self._files.array("document_hashes", "<u8").append(hashes[order])
        self._files.array("document_order", "<u4").append(order)


def byte_positions(text: str) -> np.ndarray:
    """Position in the text's UTF-8 bytes of every character, and of the end: int64, one more than characters."""
    if text.isascii():
        return np.arange(len(text) + 1)
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    sizes = 1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    while batch := list(islice(documents, BATCH)):
        yield batch


def lock_of(target: Path) -> Path:
    """Return the lock of the process that builds `target`."""
    return target.with_name(f".{target.name}.lock")


class ArrayWriter:
    """A flat array, written piece by piece."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._file = path.open("wb")
        self._dtype = dtype
        self._digest = hashlib.sha256()
        self.bytes = 0

    def append(self, values: np.ndarray | Sequence[int] | bytes) -> None:
        data = (
            values
            if isinstance(values, bytes)
            else np.ascontiguousarray(values, self._dtype).reshape(-1).view(np.uint8).data
        )
        self._file.write(data)
        self._digest.update(data)
        self.bytes += len(data)

    def finish(self) -> FileEntry:
        self._file.close()
        return FileEntry(dtype=self._dtype, bytes=self.bytes, sha256=self._digest.hexdigest())

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk was already reported by the write that met it
            self._file.close()


class FolderWriter:
    """The files of an index folder while it is written. `close` gives up on those that are not finished."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, ArrayWriter] = {}

    def array(self, name: str, dtype: str) -> ArrayWriter:
        self._open[name] = ArrayWriter(self._folder / name, dtype)
        return self._open[name]

    def strings(self, name: str) -> StringsWriter:
        return StringsWriter(self.array(f"{name}.offsets", "<i8"), self.array(f"{name}.utf8", "|u1"))

    def finish(self) -> dict[str, FileEntry]:
        return {name: writer.finish() for name, writer in sorted(self._open.items())}

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()


class StringsWriter:
    """A table of strings: offsets and one blob."""

    def __init__(self, offsets: ArrayWriter, blob: ArrayWriter) -> None:
        self._offsets, self._blob = offsets, blob
        offsets.append([0])

    def extend(self, texts: Sequence[str]) -> None:
        encoded = [text.encode() for text in texts]
        ends = self._blob.bytes + np.cumsum([len(data) for data in encoded], dtype=np.int64)
        self._offsets.append(ends)
        self._blob.append(b"".join(encoded))
