"""ratchet index --config X.yaml: build the index of a config, or what is missing of it.

ratchet index --config X.yaml [--workers 4] [--job 3/10]
ratchet index inspect FOLDER [--verify]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from ratchet.commands.arguments import config_of, config_parser, part_of_work, recorded_stages
from ratchet.commands.extras import check_index_extras
from ratchet.commands.subcommands import Subcommand, run_subcommand
from ratchet.core.config import Config, IndexConfig
from ratchet.core.errors import UserError
from ratchet.core.progress import duration
from ratchet.index_build.build import build_index
from ratchet.index_build.content import open_content_factory
from ratchet.index_build.inspection import encoder_truncation_line
from ratchet.index_build.tokenizer import chunk_tokenizer_of, warn_of_smaller_chunks
from ratchet.retrieval.layout import Manifest, read_shards

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
    print(encoder_truncation_line(manifest.settings, shards), end="")
    print(f"  digest {manifest.digest}")


SUBCOMMANDS = {
    "inspect": Subcommand("the sizes of an index; every checksum", "ratchet.index_build.inspection:main"),
}


def main(words: Sequence[str] | None = None, prog: str = "ratchet index") -> None:
    """Run a subcommand, or `build` without one."""
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT, otherwise=build)
