"""python -m retrieval "a query" --config X.yaml [-k 5] [--offset 0]: search the config's index and print the ranks."""

from __future__ import annotations

import argparse
import textwrap

from ratchet.command import add_config_arguments, config_of, run_command
from ratchet.errors import UserError
from ratchet.records import Passage
from retrieval.opening import open_index

SHOWN_CHARACTERS = 600


def show(rank: int, passage: Passage, full: bool) -> str:
    """One passage for the terminal. Documents are untrusted: control characters are not passed on."""
    head = f"{rank:>3}  {passage.score:.3f}  {passage.id}  {passage.title}"
    text = passage.text
    if not full and len(text) > SHOWN_CHARACTERS:
        text = text[:SHOWN_CHARACTERS] + " ..."
    body = textwrap.fill(_plain(text), width=100, initial_indent="     ", subsequent_indent="     ")
    return f"{_plain(head).rstrip()}\n{body}"


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m retrieval", description="Search the index of a config.")
    parser.add_argument("query")
    add_config_arguments(parser)
    parser.add_argument("-k", type=int, default=5, help="passages to show (default: 5)")
    parser.add_argument("--offset", type=int, default=0, help="ranks to skip (default: 0)")
    parser.add_argument("--full", action="store_true", help="show whole passages")
    arguments = parser.parse_args()
    if arguments.k < 1 or arguments.offset < 0:
        raise UserError("-k must be at least 1 and --offset at least 0")
    passages = open_index(config_of(arguments).index).search(arguments.query, arguments.k, arguments.offset)
    if not passages:
        print(f"no passage matches from rank {arguments.offset + 1} on")
    for rank, passage in enumerate(passages, arguments.offset + 1):
        print(show(rank, passage, arguments.full))


if __name__ == "__main__":
    run_command(main)
