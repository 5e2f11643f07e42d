"""shard.json: the counts of a shard, and the size and checksum of each of its files (`retrieval.shards` lists them)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from ratchet.core.errors import UserError
from ratchet.core.files import read_json_file, write_json
from ratchet.core.records import Record, content_key

FORMAT = 5
SHARD = "shard.json"


class FileEntry(Record):
    """A file with its checksum."""

    dtype: str
    bytes: int
    sha256: str


class ShardManifest(Record):
    """The content of a shard: its counts and files."""

    format: int = FORMAT
    settings: str
    """Key of the index settings it was built with."""
    source: str
    """Path of the file of documents."""
    source_sha256: str
    first: int
    """Its first document's place in the source, counted from 0."""
    documents: int
    chunks: int
    terms: int
    postings: int
    total_length: int
    """BM25: terms of all chunks, repeats counted."""
    top: float
    """The largest weight of a posting, or a bound above it."""
    files: dict[str, FileEntry]
    cut: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """By the digest of the encoder that the chunks were made to fit: how many are still longer than it reads, and their
    tokens past that."""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(entry.bytes for entry in self.files.values())

    @property
    def digest(self) -> str:
        """Equal digest, equal content, wherever it was read from: the counts too, which searches reckon with."""
        return content_key(self.model_dump(exclude={"source", "source_sha256", "first", "cut"}))

    def write(self, folder: Path) -> None:
        write_json(folder / SHARD, self.model_dump(mode="json"))


def damaged(folder: Path, problem: str) -> UserError:
    """Make the error for a shard that cannot be used."""
    return UserError(
        f"{folder}: this part of the index cannot be used: {problem}. Delete {folder.name} and run "
        "`ratchet index --config ...` again, which builds only what is missing."
    )


def unreadable(index: Path, problem: str) -> UserError:
    """Make the error for an index of which no part can be used."""
    return UserError(
        f"{index}: the index cannot be used: {problem}. Delete this folder and rebuild it with "
        "`ratchet index --config ...`."
    )


def check_format(index: Path, manifest: Any) -> None:
    """UserError where the manifest of an index, or of one of its shards, is of another version of Ratchet."""
    if isinstance(manifest, dict) and manifest.get("format") != FORMAT:
        raise unreadable(index, f"it has format {manifest.get('format')}, and this version reads format {FORMAT}")


def read_shard_manifest(folder: Path) -> ShardManifest:
    """The manifest of a shard, after checking that every file is there in its full size."""
    try:
        data = read_json_file(folder / SHARD)
        check_format(folder.parent.parent, data)
        manifest = ShardManifest.model_validate(data)
    except OSError as error:
        raise damaged(folder, f"cannot read {SHARD} ({error.strerror})") from error
    except ValidationError as error:
        raise damaged(folder, f"{SHARD} is not a manifest ({error.errors()[0]['msg']})") from error
    except ValueError as error:
        raise damaged(folder, f"{SHARD} is not JSON ({error})") from error
    for name, entry in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise damaged(folder, f"cannot read {name} ({error.strerror})") from error
        if size != entry.bytes:
            raise damaged(folder, f"{name} has {size} bytes, and its manifest says {entry.bytes}")
    return manifest
