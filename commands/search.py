"""Search the index of a config, or one of its sources, and print the ranks; or write the run of a file of queries."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from ratchet.core.config import Config, is_missing
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.records import Passage, Question
from ratchet.core.text import plain_line
from ratchet.retrieval.opening import open_index
from ratchet.retrieval.retriever import SourceError

SHOWN, SHOWN_CHARACTERS = 5, 600
"""Passages of a query, and characters of each."""
DEPTH = 1000
"""Documents of a query in a run."""


def show(rank: int, passage: Passage) -> str:
    """Format one passage for the terminal."""
    head = f"{rank:>3}  {passage.score:.3f}  {plain_line(passage.id)}  {plain_line(passage.title)}".rstrip()
    if passage.ranks:
        head += f"  ({', '.join(f'{name} {place.rank}: {place.score:.3f}' for name, place in passage.ranks.items())})"
    text = plain_line(passage.text)
    if len(text) > SHOWN_CHARACTERS:
        text = text[:SHOWN_CHARACTERS] + " ..."
    body = textwrap.fill(text, width=100, initial_indent="     ", subsequent_indent="     ")
    return f"{head}\n{body}"


def search(config: Config, options: argparse.Namespace) -> None:
    """Search, and print the ranks."""
    if options.queries is not None or options.run is not None:
        return _write_run(config, options)
    if options.query is None:
        raise UserError("name a query, or --queries FILE and --run FILE")
    if options.source is None:
        passages = open_index(config.index).search(options.query, options.k or SHOWN)
    else:
        import asyncio  # late: a search of the index needs none

        passages = asyncio.run(_search_source(config, options.source, options.query, options.k or SHOWN))
    if not passages:
        print("no passage matches")
    for rank, passage in enumerate(passages, 1):
        print(show(rank, passage))


def _write_run(config: Config, options: argparse.Namespace) -> None:
    from ratchet.retrieval.trec import write_run  # late: a single search needs none

    if options.queries is None or options.run is None or options.query is not None or options.source is not None:
        raise UserError("--queries FILE and --run FILE go together, without a query and --source")
    queries = [(question.id, question.text) for question in read_queries(config, options.queries)]
    written = write_run(options.run, open_index(config.index), queries, options.k or DEPTH)
    timed = written.queries - written.resumed - 1
    rate = f", {timed / written.seconds:,.0f} queries a second" if timed > 0 else ""
    resumed = f", {written.resumed:,} of them written before" if written.resumed else ""
    print(f"{options.run}: {written.queries:,} queries{resumed}{rate}")


def read_queries(config: Config, name: str) -> list[Question]:
    """Return the queries of a file, or the questions of one of the config's splits."""
    from ratchet.evaluation.arms import question_set
    from ratchet.questions.load import load_queries

    if Path(name).is_file():
        return load_queries(Path(name))
    if is_missing(config.questions):
        raise UserError(f"--queries {name}: no such file, and the config has no questions")
    return list(question_set(config, name, "--queries").questions)


async def _search_source(config: Config, name: str, query: str, k: int) -> list[Passage]:
    from ratchet.retrieval.sources.registry import open_sources  # late: a search of the index needs no client

    if name not in config.sources:
        raise UserError(f"--source {name}: not under the config's sources{did_you_mean(name, config.sources)}")
    source = open_sources({name: config.sources[name]}, open_index(config.index), config.embedder)[name]
    try:
        return await source.search(query, k)
    except SourceError as error:
        raise UserError(f"--source {name}: {error}") from error
    finally:
        await source.close()
