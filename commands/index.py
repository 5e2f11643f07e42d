"""ratchet index --config X.yaml: build the index of a config, or what is missing of it.

ratchet index --config X.yaml [--workers 4] [--job 3/10]
ratchet index add --config X.yaml more.jsonl ...     more documents, as new shards
ratchet index remove --config X.yaml ID ... [--from ids.txt]
ratchet index inspect FOLDER [--verify]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from commands.arguments import config_of, config_parser, part_of_work, recorded_stages
from commands.extras import check_index_extras
from commands.subcommands import Subcommand, run_subcommand
from index_build.build import build_index, remove_documents
from index_build.content import open_content_factory
from index_build.inspection import encoder_truncation_line
from index_build.plan import read_plan
from index_build.tokenizer import chunk_tokenizer_of, warn_of_smaller_chunks
from ratchet.config import Config, IndexConfig
from ratchet.errors import UserError
from ratchet.files import read_small_text
from ratchet.progress import duration
from retrieval.layout import Manifest, read_shards

ABOUT = "Build the index of a config from its documents, or what is missing of it."
JOBS = """A job array builds shards side by side: run `--job 0/10` to `--job 9/10` anywhere on a shared disk, in any
order; the one that finds all shards built writes the manifest, and so does running the command once more without
--job."""
MAX_IDS_BYTES = 100_000_000
OTHER_MACHINE = "index.url is set: the index is another machine's; build it there, from a config with index.path"


def build(arguments: Sequence[str], prog: str) -> None:
    """Run the command: build the index of a config, or the shards that are missing."""
    parser = config_parser(prog, f"{ABOUT}\n\n{JOBS}")
    _add_options(parser)
    given = parser.parse_args(arguments)
    config = config_of(given)
    with recorded_stages(config, "index"):
        _build(config, given)


def add(arguments: Sequence[str], prog: str) -> None:
    """Run `add`: index more sources as new shards."""
    parser = config_parser(prog, "Add documents to the index of a config, as new shards.")
    parser.add_argument("sources", nargs="+", help="JSONL or Parquet files or folders of texts to add")
    _add_options(parser)
    given = parser.parse_args(arguments)
    _build(config_of(given), given)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=1, help="processes that build shards side by side (default: 1)")
    parser.add_argument(
        "--job", type=part_of_work, metavar="K/N", help="build only every N-th shard from K on, as one of N jobs"
    )


def _build(config: Config, given: argparse.Namespace) -> None:
    index = config.index
    if index.url is not None:
        raise UserError(OTHER_MACHINE)
    check_index_extras(index)
    contents = open_content_factory(index)
    tokenizer, name = chunk_tokenizer_of(index, config.models.get("agent"), contents.limit)
    if "sources" in given:
        index = _with_sources(index, given.sources)
    warn_of_smaller_chunks(index, contents.limit)
    began = time.monotonic()
    manifest, built = build_index(index, tokenizer, name, workers=given.workers, job=given.job, contents=contents)
    _report(index, manifest, built, time.monotonic() - began)


def _with_sources(index: IndexConfig, sources: list[str]) -> IndexConfig:
    known = [source.path for source in read_plan(Path(index.path)).sources]
    more = [path for source in sources if (path := str(Path(source))) not in known]
    return index.model_copy(update={"documents": (*known, *more)})


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


def remove(arguments: Sequence[str], prog: str) -> None:
    """Run `remove`: take documents out of an index by id."""
    parser = config_parser(prog, "Take documents out of the index of a config.")
    parser.add_argument("ids", nargs="*", help="document ids")
    parser.add_argument("--from", dest="file", type=Path, help="a file with one document id a line")
    given = parser.parse_args(arguments)
    ids = list(given.ids)
    if given.file is not None:
        ids += read_small_text(given.file, MAX_IDS_BYTES).splitlines()
    if not ids:
        raise UserError("name the documents to remove: ids, or --from a file of them")
    index = config_of(given).index
    if index.url is not None:
        raise UserError(OTHER_MACHINE)
    manifest, count = remove_documents(Path(index.path), ids)
    missing = len(set(ids)) - count
    note = f"; {missing} ids are not in the index" if missing else ""
    print(f"{index.path}: {count} documents removed, {manifest.documents:,} left{note}\n  digest {manifest.digest}")


SUBCOMMANDS = {
    "add": Subcommand("add documents, as new shards", add),
    "remove": Subcommand("take documents out", remove),
    "inspect": Subcommand("the sizes of an index; every checksum", "index_build.inspection:main"),
}


def main(words: Sequence[str] | None = None, prog: str = "python -m index_build") -> None:
    """Run a subcommand, or `build` without one."""
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT, otherwise=build)
