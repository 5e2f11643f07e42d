"""The content of a shard beside its texts, by the kind of index: BM25 postings, encoded vectors, or nothing."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.core.config import IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.files import write_atomic
from ratchet.index_build.postings import Bm25Postings, SparsePostings
from ratchet.index_build.shard import ContentWriter, FolderWriter
from ratchet.retrieval.encoders.limits import TokenLimit
from ratchet.retrieval.layout import K1, B
from ratchet.retrieval.sparse.terms import Analyzer

# Chunks that are encoded together, and the most that a kill can lose.
CHUNKS_PER_PART = 1024
ENCODER_MISSING = "index.encoder.path is missing: the model that encodes the chunks"


@dataclass(frozen=True)
class ContentFactory:
    """Makes the content of shards. `encoder` is the digest of the encoder, '' where there is none."""

    make: Callable[[Path, Path], ContentWriter]
    """Called with the shard's folder and a folder for what may outlive a kill."""
    encoder: str
    limit: TokenLimit | None = None
    """The encoder's limit for a chunk, where there is an encoder."""


def open_content_factory(config: IndexConfig) -> ContentFactory:
    """Return the factory of an index of this config; loads its encoder where it has one."""
    if config.engine == "lucene":
        return ContentFactory(lambda folder, kept: TextsOnly(), "")
    if config.kind == "bm25":
        words = Analyzer(config.stemmer)
        return ContentFactory(lambda folder, kept: Bm25Postings(words, folder, K1, B), "")
    if config.kind == "sparse":
        return _sparse_contents(config)
    return _dense_contents(config)


def _sparse_contents(config: IndexConfig) -> ContentFactory:
    from ratchet.retrieval.encoders.sparse import load_encoder
    from ratchet.retrieval.encoders.vectors import WEIGHTS, load_vectors, save_vectors

    if config.encoder is None or not config.encoder.path:
        raise UserError(ENCODER_MISSING)
    encoder = load_encoder(config.encoder)

    def make(folder: Path, kept: Path) -> ContentWriter:
        inner = (
            RowVectors(encoder.vocabulary)
            if config.engine == "milvus"
            else SparsePostings(folder, encoder.vocabulary, WEIGHTS)
        )
        return EncodedContent(
            kept,
            lambda path, texts: save_vectors(path, encoder.encode_documents(texts)),
            load_vectors,
            lambda vectors: inner.add(vectors.offsets, vectors.terms, vectors.codes),
            inner.write,
            inner.close,
        )

    return ContentFactory(make, encoder.digest, encoder.document_limit)


def _dense_contents(config: IndexConfig) -> ContentFactory:
    from ratchet.retrieval.backends.dense import FILE, build_faiss, new_index
    from ratchet.retrieval.encoders.dense import open_dense_encoder

    if config.encoder is None or not config.encoder.path:
        raise UserError(ENCODER_MISSING)
    encoder, normalize = open_dense_encoder(config.encoder), config.encoder.normalize
    if config.engine == "ratchet":
        new_index(encoder.dimension, config.faiss)  # a wrong string must not end a build after hours of encoding

    def make(folder: Path, kept: Path) -> ContentWriter:
        parts: list[_Matrix] = []

        def write(files: FolderWriter) -> dict[str, Any]:
            def matrices() -> Iterator[np.ndarray]:
                return (np.load(part.path, allow_pickle=False) for part in parts)

            if config.engine == "ratchet":
                build_faiss(encoder.dimension, config.faiss, matrices, files.array(FILE, "|u1").append)
            else:
                vectors = files.array("vectors", "<f4")
                for rows in matrices():
                    vectors.append(rows)
            longest = (float(np.linalg.norm(rows.astype(np.float64), axis=1).max()) for rows in matrices())
            top = 1.0 if normalize else max(longest, default=1.0)
            return {"terms": encoder.dimension, "postings": 0, "total_length": 0, "top": top}

        def save(path: Path, texts: Sequence[str]) -> None:
            buffer = io.BytesIO()
            np.save(buffer, encoder.encode_documents(texts))
            write_atomic(path, buffer.getvalue())

        return EncodedContent(kept, save, _load_matrix, parts.append, write, lambda: None)

    return ContentFactory(make, encoder.digest, encoder.document_limit)


@dataclass(frozen=True)
class _Matrix:
    """A part's vectors, on the disk until the shard is written: they do not have to fit into memory together."""

    path: Path
    rows: int

    def __len__(self) -> int:
        return self.rows


def _load_matrix(path: Path) -> _Matrix | None:
    try:
        return _Matrix(path, len(np.load(path, mmap_mode="r", allow_pickle=False)))
    except (OSError, ValueError, EOFError):
        return None


class EncodedContent:
    """Content that a model computes, in parts of CHUNKS_PER_PART chunks that are kept until the shard is finished."""

    def __init__(
        self,
        kept: Path,
        encode: Callable[[Path, Sequence[str]], None],
        load: Callable[[Path], Any],
        take: Callable[[Any], None],
        write: Callable[[FolderWriter], dict[str, Any]],
        close: Callable[[], None],
    ) -> None:
        self._kept, self._encode, self._load, self._take = kept, encode, load, take
        self._write, self.close = write, close
        self._texts: list[str] = []
        self._parts = 0

    def add(self, texts: Sequence[str]) -> None:
        self._texts += texts
        while len(self._texts) >= CHUNKS_PER_PART:
            self._part(self._texts[:CHUNKS_PER_PART])
            self._texts = self._texts[CHUNKS_PER_PART:]

    def _part(self, texts: Sequence[str]) -> None:
        path = self._kept / f"part-{self._parts:05d}.npz"
        self._parts += 1
        part = self._load(path)
        if part is None or len(part) != len(texts):
            self._encode(path, texts)
            part = self._load(path)
        self._take(part)

    def write(self, files: FolderWriter) -> dict[str, Any]:
        if self._texts:
            self._part(self._texts)
        return self._write(files)


class RowVectors:
    """Learned sparse vectors row by row, for an engine that sorts them itself."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, offsets: np.ndarray, terms: np.ndarray, values: np.ndarray) -> None:
        self._parts.append((offsets, terms, values))

    def write(self, files: FolderWriter) -> dict[str, Any]:
        offsets, terms, values = (
            files.array("row_offsets", "<i8"),
            files.array("row_terms", "<u4"),
            files.array("row_values", "<u2"),
        )
        offsets.append([0])
        total = 0
        for part_offsets, part_terms, part_values in self._parts:
            offsets.append(part_offsets[1:] + total)
            terms.append(part_terms)
            values.append(part_values)
            total += len(part_terms)
        return {"terms": self._vocabulary, "postings": total, "total_length": 0, "top": 1.0}

    def close(self) -> None:
        self._parts.clear()


class TextsOnly:
    """Texts alone: another engine indexes them."""

    def add(self, texts: Sequence[str]) -> None:
        pass

    def write(self, files: FolderWriter) -> dict[str, Any]:
        return {"terms": 0, "postings": 0, "total_length": 0, "top": 1.0}

    def close(self) -> None:
        pass


def encoding_folder(shard: Path) -> Path:
    """Return the folder of a shard's encoded parts, which are kept until the shard is finished."""
    return shard.with_name(f".{shard.name}.encoded")


def drop_encoded_parts(shard: Path) -> None:
    """Delete the encoded parts of a finished shard."""
    shutil.rmtree(encoding_folder(shard), ignore_errors=True)
