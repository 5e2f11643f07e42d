"""ratchet search "a query" --config X.yaml [-k 5] [--source NAME]: search, and print the ranks.

The start by the folder's name also has `mcp` and `memory` as subcommands; with the options first, `--config X.yaml mcp`
searches for the word "mcp".
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ratchet.commands.arguments import config_of, config_parser
from ratchet.core.config import Config
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.records import Passage
from ratchet.core.text import plain_line
from ratchet.retrieval.retriever import SourceError

ABOUT = "Search the index of a config, or one of its sources."
SHOWN_CHARACTERS = 600


def show(rank: int, passage: Passage) -> str:
    """Format one passage for the terminal."""
    head = f"{rank:>3}  {passage.score:.3f}  {plain_line(passage.id)}  {plain_line(passage.title)}".rstrip()
    text = plain_line(passage.text)
    if len(text) > SHOWN_CHARACTERS:
        text = text[:SHOWN_CHARACTERS] + " ..."
    body = textwrap.fill(text, width=100, initial_indent="     ", subsequent_indent="     ")
    return f"{head}\n{body}"


def search(arguments: Sequence[str], prog: str) -> None:
    """Search, and print the ranks."""
    parser = config_parser(prog, ABOUT)
    parser.add_argument("query")
    parser.add_argument("-k", type=int, default=5, help="passages to show (default: 5)")
    parser.add_argument("--source", metavar="NAME", help="search this one of the config's sources, not the index")
    given = parser.parse_args(arguments)
    if given.k < 1:
        raise UserError("-k must be at least 1")
    config = config_of(given, plugins=False)
    from ratchet.retrieval.loader import open_index  # late: it loads Numba

    if given.source is None:
        passages = open_index(config.index).search(given.query, given.k)
    else:
        import asyncio  # late: a search of the index needs none

        passages = asyncio.run(_search_source(config, given.source, given.query, given.k))
    if not passages:
        print("no passage matches")
    for rank, passage in enumerate(passages, 1):
        print(show(rank, passage))


async def _search_source(config: Config, name: str, query: str, k: int) -> list[Passage]:
    from ratchet.retrieval.loader import open_index
    from ratchet.retrieval.sources.registry import open_sources

    if name not in config.sources:
        raise UserError(f"--source {name}: not under the config's sources{did_you_mean(name, config.sources)}")
    source = open_sources({name: config.sources[name]}, open_index(config.index), config.embedder)[name]
    try:
        return await source.search(query, k)
    except SourceError as error:
        raise UserError(f"--source {name}: {error}") from error
    finally:
        await source.close()
