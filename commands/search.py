"""Search the index of a config, or one of its sources, and print the ranks."""

from __future__ import annotations

import argparse
import textwrap

from ratchet.core.config import Config
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.records import Passage
from ratchet.core.text import plain_line
from ratchet.retrieval.opening import open_index
from ratchet.retrieval.retriever import SourceError

SHOWN_CHARACTERS = 600


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
    if options.source is None:
        passages = open_index(config.index).search(options.query, options.k)
    else:
        import asyncio  # late: a search of the index needs none

        passages = asyncio.run(_search_source(config, options.source, options.query, options.k))
    if not passages:
        print("no passage matches")
    for rank, passage in enumerate(passages, 1):
        print(show(rank, passage))


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
