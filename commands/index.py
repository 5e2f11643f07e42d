"""ratchet index --config X.yaml: build the index of a config, or what is missing of it.

ratchet index --config X.yaml [--workers 4] [--job 3/10]
ratchet index inspect FOLDER [--verify]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ratchet.commands.arguments import config_of, config_parser, part_of_work, recorded_stages
from ratchet.commands.extras import check_index_extras
from ratchet.commands.subcommands import Subcommand, run_subcommand
from ratchet.core.config import Config, IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.progress import duration
from ratchet.index_build.build import build_index
from ratchet.index_build.chunks import chunk_tokenizer_of, warn_of_smaller_chunks
from ratchet.index_build.content import open_content_factory
from ratchet.retrieval.layout import IndexSettings, Manifest, ShardManifest, read_manifest, read_shards, verify
from ratchet.retrieval.loader import MILVUS_LITE

ABOUT = "Build the index of a config from its documents, or what is missing of it."
JOBS = """A job array builds shards side by side: run `--job 0/10` to `--job 9/10` anywhere on a shared disk, in any
order; the one that finds all shards built writes the manifest, and so does running the command once more without
--job."""
OTHER_MACHINE = "index.url is set: the index is another machine's; build it there, from a config with index.path"


def build(arguments: Sequence[str], prog: str) -> None:
    """Run the command: build the index of a config, or the shards that are missing."""
    parser = config_parser(prog, f"{ABOUT}\n\n{JOBS}")
    parser.add_argument("--workers", type=int, default=1, help="processes that build shards side by side (default: 1)")
    parser.add_argument(
        "--job", type=part_of_work, metavar="K/N", help="build only every N-th shard from K on, as one of N jobs"
    )
    given = parser.parse_args(arguments)
    config = config_of(given)
    with recorded_stages(config, "index"):
        _build(config, given)


def _build(config: Config, given: argparse.Namespace) -> None:
    index = config.index
    if index.url is not None:
        raise UserError(OTHER_MACHINE)
    check_index_extras(index)
    contents = open_content_factory(index)
    tokenizer, name = chunk_tokenizer_of(index, config.models.get("agent"), contents.limit)
    warn_of_smaller_chunks(index, contents.limit)
    began = time.monotonic()
    manifest, built = build_index(index, tokenizer, name, workers=given.workers, job=given.job, contents=contents)
    _report(index, manifest, built, time.monotonic() - began)


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


def inspect(arguments: Sequence[str], prog: str = "ratchet index inspect") -> None:
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
    _print_index(given.folder, manifest, shards)


def _print_index(folder: Path, manifest: Manifest, shards: list[ShardManifest]) -> None:
    """Print an index's counts, and the sizes of its files over all shards."""
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


SUBCOMMANDS = {"inspect": Subcommand("the sizes of an index; every checksum", inspect)}


def main(words: Sequence[str] | None = None, prog: str = "ratchet index") -> None:
    """Run a subcommand, or `build` without one."""
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT, otherwise=build)
