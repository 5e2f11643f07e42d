"""ratchet index inspect FOLDER: what an index holds, how large its parts are, and whether they are damaged."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ratchet.retrieval.layout import IndexSettings, Manifest, ShardManifest, read_manifest, read_shards, verify
from ratchet.retrieval.loader import MILVUS_LITE


def main(arguments: Sequence[str], prog: str = "ratchet index inspect") -> None:
    """Run `inspect`: print what an index holds; with --verify, compare every file with its checksum."""
    parser = argparse.ArgumentParser(prog=prog, description="Look into an index.")
    parser.add_argument("folder", type=Path, help="the index folder")
    parser.add_argument("--verify", action="store_true", help="read every file and compare it with its checksum")
    given = parser.parse_args(arguments)
    manifest = read_manifest(given.folder)
    shards = read_shards(given.folder, manifest)
    if given.verify:
        count = verify(given.folder, manifest, shards, everything=True)
        if manifest.settings.engine == "lucene":
            from ratchet.retrieval.backends.lucene import LuceneRanker

            LuceneRanker(given.folder / "lucene", manifest.settings.k1, manifest.settings.b).verify()
        print(f"{given.folder}: {count} files have the checksums they were built with")
    print_index(given.folder, manifest, shards)


def print_index(folder: Path, manifest: Manifest, shards: list[ShardManifest]) -> None:
    """Print an index's counts, and the sizes of its files over all shards."""
    settings = manifest.settings
    print(f"{folder}: {settings.kind} on {settings.engine}, digest {manifest.digest}")
    fitted = f" (smaller where needed to fit {' and '.join(settings.chunks_fit)})" if settings.chunks_fit else ""
    print(
        f"  {manifest.documents:,} documents, {manifest.chunks:,} chunks of {settings.chunk_tokens} tokens with "
        f"{settings.chunk_overlap} overlap{fitted}, {len(shards)} shards, {len(manifest.sources)} sources"
    )
    print(encoder_truncation_line(settings, shards), end="")
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


def encoder_truncation_line(settings: IndexSettings, shards: Sequence[ShardManifest]) -> str:
    """What an index's encoder did not read of its chunks, as a line; nothing where there is no encoder."""
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
