"""`ratchet index`: build the index of a config, or what is missing of it; look into an index."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ratchet.commands.checks import check_index_extras
from ratchet.commands.recording import recorded_stages
from ratchet.core.config import Config, IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.progress import duration
from ratchet.index_build.build import build_index
from ratchet.index_build.chunks import chunk_tokenizer_of, warn_of_smaller_chunks
from ratchet.index_build.content import open_content_factory
from ratchet.retrieval.layout import IndexSettings, Manifest, ShardManifest, read_manifest, read_shards, verify
from ratchet.retrieval.loader import MILVUS_LITE

NOTHING_TO_BUILD = (
    "there is nothing to build: index.source names a service with documents of its own, and the index behind index.url "
    "is built on its machine, from a config with index.path"
)


def build(config: Config, options: argparse.Namespace) -> None:
    """Build the index of a config, or the shards that are missing."""
    with recorded_stages(config, "index"):
        _build(config, options)


def _build(config: Config, options: argparse.Namespace) -> None:
    index = config.index
    if not index.built:
        raise UserError(NOTHING_TO_BUILD)
    check_index_extras(index)
    parts = [(part, open_content_factory(part)) for part in index.built.values()]
    # The parts of a fused index have the same chunks: those that the encoder which reads the least reads whole.
    limits = (contents.limit for _, contents in parts if contents.limit and contents.limit.tokens)
    limit = min(limits, key=lambda limit: limit.tokens or 0, default=parts[0][1].limit)
    tokenizer, name = chunk_tokenizer_of(index, config.models.get("agent"), limit)
    warn_of_smaller_chunks(index, limit)
    for part, contents in parts:
        began = time.monotonic()
        contents = replace(contents, limit=limit)
        jobs = {"workers": options.workers, "job": options.job}
        manifest, built = build_index(part, tokenizer, name, contents=contents, **jobs)
        _report(part, manifest, built, time.monotonic() - began)


def _report(config: IndexConfig, manifest: Manifest | None, built: int, seconds: float) -> None:
    if manifest is None:
        print(f"{config.path}: {built} shards built in {duration(seconds)}; other jobs have not finished theirs")
        return
    shards = read_shards(Path(config.path), manifest)
    state = f"{built} shards built in {duration(seconds)}" if built else "already built, nothing to do"
    print(f"{config.path}: {state}")
    print(
        f"  {manifest.documents:,} documents, {manifest.chunks:,} chunks, {sum(shard.postings for shard in shards):,} "
        f"postings, {len(shards)} shards, {sum(shard.size for shard in shards) / 1e6:,.1f} MB"
    )
    print(_truncation_line(manifest.settings, shards), end="")
    print(f"  digest {manifest.digest}")


def inspect(options: argparse.Namespace) -> None:
    """Print what an index holds; with --verify, compare every file with its checksum."""
    manifest = read_manifest(options.folder)
    shards = read_shards(options.folder, manifest)
    if options.verify:
        count = verify(options.folder, manifest, shards, everything=True)
        if manifest.settings.engine == "lucene":
            from ratchet.retrieval.backends.lucene import LuceneRanker

            LuceneRanker(options.folder / "lucene", manifest.settings.k1, manifest.settings.b).verify()
        print(f"{options.folder}: {count} files have the checksums they were built with")
    _print_index(options.folder, manifest, shards)


def _print_index(folder: Path, manifest: Manifest, shards: list[ShardManifest]) -> None:
    settings = manifest.settings
    print(f"{folder}: {settings.kind} on {settings.engine}, digest {manifest.digest}")
    fitted = f" (smaller where needed to fit {' and '.join(settings.chunks_fit)})" if settings.chunks_fit else ""
    print(
        f"  {manifest.documents:,} documents, {manifest.chunks:,} chunks of {settings.chunk_tokens} tokens with "
        f"{settings.chunk_overlap} overlap{fitted}, {len(shards)} shards, {len(manifest.sources)} sources"
    )
    print(_truncation_line(settings, shards), end="")
    sizes: Counter[str] = Counter()
    for shard in shards:
        for name, entry in shard.files.items():
            sizes[name] += entry.bytes
    for name in ("lucene", MILVUS_LITE):  # files or folders of other engines
        paths = [folder / name, *(folder / name).rglob("*")]
        sizes[name] += sum(path.stat().st_size for path in paths if path.is_file())
    postings = sum(shard.postings for shard in shards)
    for part, size in (+sizes).most_common():
        per = f"  {size / postings:6.2f} bytes a posting" if part == "postings" and postings else ""
        print(f"  {part:<20}{size / 1e6:>12,.1f} MB{per}")
    if postings:
        print(f"  {postings:,} postings, {postings / max(manifest.chunks, 1):,.0f} a chunk")


def _truncation_line(settings: IndexSettings, shards: Sequence[ShardManifest]) -> str:
    if not settings.encoder:
        return ""
    cuts = [shard.cut.get(settings.encoder, (0, 0)) for shard in shards]
    chunks, tokens = (sum(numbers) for numbers in zip(*cuts, strict=True)) if cuts else (0, 0)
    if not chunks:
        return "  no chunk was cut by the encoder\n"
    return (
        f"  {chunks:,} chunks were cut by the encoder, {tokens:,} tokens in all, which no search finds: their titles "
        "leave too little room; shorten their titles, or raise index.encoder.max_length of a sparse encoder "
        "whose model reads more\n"
    )
