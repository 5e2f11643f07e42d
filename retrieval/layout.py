"""An index on disk: a folder of flat little-endian arrays, memory-mapped on open, and a manifest that describes them.

    manifest.json                          settings, counts, and each file's dtype, size and sha256
    document_ids, titles, terms            string tables: NAME.offsets (int64, one more than strings), NAME.utf8
    texts.utf8                             all document texts, one after the other
    chunk_spans                            int64 pairs: a chunk is texts.utf8[start:end]
    document_chunks                        int64, one more than documents: where each document's chunks begin
    posting_offsets                        int64, one more than terms: where each term's postings begin
    posting_chunks, posting_weights        uint32 chunk, ascending within a term; float32 weight

Terms are sorted by their UTF-8 bytes, so a term is found by bisection; nothing is read into a dict of strings.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from ratchet.config import IndexConfig
from ratchet.errors import UserError
from ratchet.records import Record

FORMAT = 1
MANIFEST = "manifest.json"
# What a search returns, apart from the scores: the part of the files that goes into the digest.
CONTENT_FILES = (
    *(f"{name}.{part}" for name in ("document_ids", "titles") for part in ("offsets", "utf8")),
    *("texts.utf8", "chunk_spans", "document_chunks"),
)


class IndexSettings(Record):
    """What of the config decides an index's content."""

    kind: Literal["bm25"]
    chunk_tokens: int
    chunk_overlap: int
    tokenizer: str
    """Digest of the tokenizer that measured the chunks."""
    k1: float
    b: float
    stemmer: str | None
    stop_words: bool

    @classmethod
    def of(cls, config: IndexConfig, tokenizer_digest: str) -> IndexSettings:
        names = cls.model_fields.keys() - {"tokenizer"}
        return cls(tokenizer=tokenizer_digest, **{name: getattr(config, name) for name in names})


class Source(Record):
    """A file of documents that went into the index."""

    path: str
    sha256: str


class FileEntry(Record):
    dtype: str
    bytes: int
    sha256: str


class Manifest(Record):
    format: int = FORMAT
    digest: str
    """Of chunks and scoring settings: equal digest, equal search results."""
    settings: IndexSettings
    tokenizer: str
    """Name of the tokenizer, for the reader."""
    sources: tuple[Source, ...]
    documents: int
    chunks: int
    terms: int
    postings: int
    mean_length: float
    """Terms of a chunk, title included, stop words not."""
    files: dict[str, FileEntry]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(entry.bytes for entry in self.files.values())


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index folder, after checking that every file is there in its full size."""
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(
            f"{folder}: there is no index here; build it with `python -m index_build --config ...`, or mend index.path"
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror})") from error
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise damaged(folder, f"{MANIFEST} is not a manifest of this version ({error.errors()[0]['msg']})") from error
    if manifest.format != FORMAT:
        raise damaged(folder, f"it has format {manifest.format}, and this version reads format {FORMAT}")
    for name, entry in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise damaged(folder, f"cannot read {name} ({error.strerror})") from error
        if size != entry.bytes:
            raise damaged(folder, f"{name} has {size} bytes, and its manifest says {entry.bytes}")
    return manifest


def damaged(folder: Path, problem: str) -> UserError:
    return UserError(
        f"{folder}: the index cannot be used: {problem}. Delete this folder and build it again with "
        "`python -m index_build --config ...`."
    )


def map_array(folder: Path, manifest: Manifest, name: str) -> Any:
    """One file as a read-only array, memory-mapped."""
    entry = manifest.files.get(name)
    if entry is None:
        raise damaged(folder, f"its manifest does not name {name}")
    if entry.bytes == 0:  # an empty file cannot be mapped
        array = np.empty(0, entry.dtype)
        array.flags.writeable = False
        return array
    return np.asarray(np.memmap(folder / name, entry.dtype, mode="r"))


class Strings:
    """A memory-mapped table of strings."""

    def __init__(self, folder: Path, manifest: Manifest, name: str) -> None:
        self._offsets = map_array(folder, manifest, f"{name}.offsets")
        self._blob = memoryview(map_array(folder, manifest, f"{name}.utf8"))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def _bytes(self, at: int) -> bytes:
        return bytes(self._blob[self._offsets[at] : self._offsets[at + 1]])

    def __getitem__(self, at: int) -> str:
        return self._bytes(at).decode()

    def find(self, text: str) -> int | None:
        """Position of `text` in a table that is sorted by UTF-8 bytes; None if it is not there."""
        wanted = text.encode()
        at = bisect_left(range(len(self)), wanted, key=self._bytes)
        return at if at < len(self) and self._bytes(at) == wanted else None
