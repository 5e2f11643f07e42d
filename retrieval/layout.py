"""An index on disk: a folder of immutable shards and a manifest that lists them.

    manifest.json         settings, sources, shards with their digests
    shards/00000, ...     retrieval/index.py
    lucene                where the engine is Lucene: its own index over the same chunks
    plan.json             how the sources are cut into shards (index_build/plan.py)
    verified.json         when each file last had the checksum that its manifest states; of this machine alone

A search trusts the bytes it maps, so a file that changed since its checksum was last computed, by its size or time of
change, is read and checked again before an index is opened. `ratchet index inspect --verify` checks all."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from ratchet.core.config import FusionConfig, IndexConfig, RerankConfig, is_missing
from ratchet.core.errors import UserError
from ratchet.core.files import read_json_file, write_json
from ratchet.core.progress import Progress
from ratchet.core.records import Record, content_key
from ratchet.core.runfolder import file_digest
from ratchet.core.words import STOP_WORDS, WORD_RULES, read_stop_words
from ratchet.retrieval.retriever import NoIndex

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
        return sum(entry.bytes for entry in self.files.values())

    @property
    def digest(self) -> str:
        """Equal digest, equal content, wherever it was read from: the counts too, which searches reckon with."""
        return content_key(self.model_dump(exclude={"source", "source_sha256", "first", "cut"}))

    def write(self, folder: Path) -> None:
        write_json(folder / SHARD, self.model_dump(mode="json"))


def damaged(folder: Path, problem: str) -> UserError:
    """Return the error of a shard that cannot be used."""
    return UserError(
        f"{folder}: this part of the index cannot be used: {problem}. Delete {folder.name} and run "
        "`ratchet index --config ...` again, which builds only what is missing."
    )


def unreadable(index: Path, problem: str) -> UserError:
    """Return the error of an index of which no part can be used."""
    return UserError(
        f"{index}: the index cannot be used: {problem}. Delete this folder and rebuild it with "
        "`ratchet index --config ...`."
    )


def check_format(index: Path, manifest: Any) -> None:
    """Raise UserError where the manifest of an index, or of one of its shards, is of another version of Ratchet."""
    if isinstance(manifest, dict) and manifest.get("format") != FORMAT:
        raise unreadable(index, f"it has format {manifest.get('format')}, and this version reads format {FORMAT}")


def read_shard_manifest(folder: Path) -> ShardManifest:
    """Read the manifest of a shard, after checking that every file is there in its full size."""
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


MANIFEST = "manifest.json"
SHARDS = "shards"
VERIFIED = "verified.json"
# Less than this is checked without a progress display.
QUIET_BYTES = 1 << 28
K1, B = 0.9, 0.4
"""The parameters that the codes of a BM25 index are made with: Anserini's defaults, and those of the config."""


class IndexSettings(Record):
    """The settings that decide an index's content."""

    kind: Literal["bm25", "sparse", "dense"]
    engine: Literal["ratchet", "lucene", "milvus"]
    chunk_tokens: int
    chunk_overlap: int
    tokenizer: str
    """Digest of the tokenizer that measured the chunks."""
    k1: float
    b: float
    """BM25's parameters that the codes of postings are made with. A search may take others."""
    stemmer: str | None
    stop_words: bool
    """False for BM25, which indexes every word. Other kinds have no words, and keep what they have always said here."""
    encoder: str
    """Digest of the sparse or dense encoder; '' where there is none."""
    chunks_fit: tuple[str, ...] = ()
    """The limit of its encoder that every chunk was made to fit, in words."""
    faiss: str = ""
    """The string for faiss's index_factory, where it ranks the chunks."""
    word_rules: int = 0
    """`WORD_RULES` of core/words.py where the texts were split into words (BM25), else 0."""

    @classmethod
    def of(
        cls, config: IndexConfig, tokenizer_digest: str, encoder_digest: str = "", chunks_fit: tuple[str, ...] = ()
    ) -> IndexSettings:
        return cls(
            kind=config.kind,
            engine=config.engine,
            chunk_tokens=config.chunk_tokens,
            chunk_overlap=config.chunk_overlap,
            tokenizer=tokenizer_digest,
            k1=K1,
            b=B,
            stemmer=config.stemmer,
            stop_words=config.kind != "bm25",
            encoder=encoder_digest,
            chunks_fit=chunks_fit,
            faiss=config.faiss if (config.kind, config.engine) == ("dense", "ratchet") else "",
            word_rules=WORD_RULES if config.kind == "bm25" else 0,
        )

    @property
    def key(self) -> str:
        # Without chunks_fit and word_rules where they are empty: such an index keeps the key that it has always had.
        return content_key(FORMAT, self.model_dump(exclude_defaults=True))


class Source(Record):
    """A file or folder of documents that went into the index."""

    path: str
    sha256: str


class ShardEntry(Record):
    """A shard as the manifest lists it."""

    name: str
    digest: str
    documents: int
    chunks: int


class Manifest(Record):
    """The content of an index: its settings, sources and shards."""

    format: int = FORMAT
    digest: str
    """A digest of chunks and scoring: equal digest, equal search results."""
    settings: IndexSettings
    tokenizer: str
    """Name of the tokenizer, for the reader."""
    encoder: dict[str, Any] = Field(default_factory=dict)
    """Settings of the encoder, whose queries this index answers."""
    sources: tuple[Source, ...]
    shards: tuple[ShardEntry, ...]
    documents: int
    chunks: int

    def write(self, folder: Path) -> None:
        write_json(folder / MANIFEST, self.model_dump(mode="json"))

    @property
    def content(self) -> str:
        """The digest that a manifest of this content must have."""
        cut = {"tokenizer", "chunk_tokens", "chunk_overlap", "chunks_fit"}
        scoring = self.settings.model_dump(exclude=cut)
        shards = [(shard.digest, shard.documents, shard.chunks) for shard in self.shards]
        return content_key(FORMAT, scoring, shards, None)  # None: of documents that could be removed once


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an index folder."""
    path = folder / MANIFEST
    try:
        data = read_json_file(path)
    except FileNotFoundError as error:
        state = "only a part of an index" if (folder / "plan.json").exists() else "no index"
        raise UserError(
            f"{folder}: there is {state} here; build it with `ratchet index --config ...`, or fix index.path"
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror})") from error
    except ValueError as error:
        raise unreadable(folder, f"{MANIFEST} is not JSON ({error})") from error
    check_format(folder, data)
    try:
        manifest = Manifest.model_validate(data)
    except ValidationError as error:
        raise unreadable(folder, f"{MANIFEST} is not a manifest ({error.errors()[0]['msg']})") from error
    if manifest.digest != manifest.content:
        raise unreadable(folder, f"{MANIFEST} has changed since it was written")
    if manifest.settings.kind == "bm25" and manifest.settings.word_rules != WORD_RULES:
        raise unreadable(folder, "its texts were split into words by other rules than this version's for queries")
    return manifest


def searched_digest(manifest: Manifest, config: IndexConfig) -> str:
    """Return the digest of an index that is searched as this config says: equal digest, equal search results."""
    if manifest.settings.kind != "bm25":
        return content_key(manifest.digest, config.faiss_search) if config.faiss_search else manifest.digest
    asked = config.k1, config.b, sorted(read_stop_words(config.stop_words))
    return manifest.digest if asked == (K1, B, sorted(STOP_WORDS)) else content_key(manifest.digest, *asked)


def read_shards(folder: Path, manifest: Manifest) -> list[ShardManifest]:
    """Read the manifests of an index's shards, after checking that they are those that the index lists."""
    shards = []
    for entry in manifest.shards:
        path = folder / SHARDS / entry.name
        shard = read_shard_manifest(path)
        if shard.digest != entry.digest:
            raise damaged(path, f"{SHARD} is not the one that {MANIFEST} lists")
        shards.append(shard)
    return shards


def verify(folder: Path, manifest: Manifest, shards: list[ShardManifest], everything: bool = False) -> int:
    """Compare files with their checksums and return how many were read: those that changed since, or everything.

    Raises UserError at the first file that differs.
    """
    known = read_stamps(folder)
    files = {
        f"{SHARDS}/{entry.name}/{name}": file
        for entry, shard in zip(manifest.shards, shards, strict=True)
        for name, file in shard.files.items()
    }
    stamps = {name: stamp_of(folder / name) for name in files}
    unsure = [name for name in files if everything or known.get(name) != stamps[name]]
    size = sum(files[name].bytes for name in unsure)
    if unsure:
        loud = size > QUIET_BYTES or everything
        with Progress(f"checking {folder} (MB)", size // 1_000_000) if loud else contextlib.nullcontext() as progress:
            for name in unsure:
                if file_digest(folder / name) != files[name].sha256:
                    # What is known to be bad must not look checked on the next open.
                    write_stamps(folder, {key: value for key, value in known.items() if key != name})
                    place = (folder / name).parent
                    raise damaged(place, f"the content of {Path(name).name} has changed since it was built")
                if progress is not None:
                    progress.advance(files[name].bytes // 1_000_000)
        write_stamps(folder, stamps)
    return len(unsure)


def write_stamps(folder: Path, stamps: dict[str, list[int]]) -> None:
    """Store when files had the right checksums. A folder that cannot be written is checked on every open."""
    with contextlib.suppress(UserError):
        write_json(folder / VERIFIED, stamps)


def stamp_of(path: Path) -> list[int]:
    """Return size and time of change (ns)."""
    try:
        status = path.stat()
    except OSError as error:
        raise damaged(path.parent, f"cannot read {path.name} ({error.strerror})") from error
    return [status.st_size, status.st_mtime_ns]


def read_stamps(folder: Path) -> dict[str, list[int]]:
    """Read when each file was last verified; empty if that is not known."""
    try:
        stamps = read_json_file(folder / VERIFIED)
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


# What identifies an index, told without opening it: `ratchet status` imports no search engine


def index_digest(config: IndexConfig) -> str | None:
    """Return what identifies an index without asking a server; None where it is not built.

    A search server or service is known by its address alone: what is behind it is checked as it answers.
    """
    if is_missing(config):
        return NoIndex.digest
    digest = _digest(config)
    return digest if config.rerank is None or digest is None else reranked_digest(config.rerank, digest)


def _digest(config: IndexConfig) -> str | None:
    if config.parts:
        parts = {name: index_digest(part) for name, part in config.parts.items()}
        return None if None in parts.values() else fused_digest(config.fusion, parts)
    if config.source is not None:
        return content_key("source", config.source.model_dump(mode="json", exclude={"cache", "mode"}))
    if config.url is not None:
        return content_key("served", config.url, config.served_name)
    if not (Path(config.path) / MANIFEST).exists():
        return None
    return searched_digest(read_manifest(Path(config.path)), config)


def fused_digest(config: FusionConfig, digests: Mapping[str, str | None]) -> str:
    """Return the digest of an index that is fused of parts with these digests, in their order."""
    return content_key("fused", config.model_dump(), list(digests.items()))


def reranked_digest(config: RerankConfig, index: str) -> str:
    """Return the digest of an index with the digest `index` that is reranked so."""
    return content_key("reranked", index, config.identity)
