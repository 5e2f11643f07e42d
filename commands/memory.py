"""ratchet memory stats|list|show ENTITY --config X.yaml: look into a run's evidence memory."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence

from rich.table import Table

from ratchet.commands.arguments import config_of, config_parser
from ratchet.commands.subcommands import Subcommand, run_subcommand
from ratchet.core.console import wide_console
from ratchet.core.errors import UserError
from ratchet.core.text import plain_line
from ratchet.retrieval.memory.memory import Memory, memory_of
from ratchet.retrieval.memory.pieces import Piece, Pieces
from ratchet.retrieval.memory.records import entity_key

ABOUT = "Look into the evidence memory of a config."
SHOWN_CHARACTERS = 600


def main(words: Sequence[str], prog: str = "ratchet memory") -> None:
    """Run a subcommand; the default is `stats`."""
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT, otherwise=stats)


def stats(words: Sequence[str], prog: str) -> None:
    """Print how much each scope holds."""
    memory, pieces = _open(prog, ABOUT, words)
    scopes = pieces.scopes()
    segments = memory.files.segments()
    size = sum(path.stat().st_size for path in segments)
    print(f"{plain_line(str(memory.files.folder))}: {len(segments)} segment(s), {size} bytes")
    table = Table("scope")
    for title in ("entities", "pieces", "left out by limits", "left by questions", "characters", "from", "to"):
        table.add_column(title, justify="right")
    for scope in scopes:
        groups = [pieces.under(scope, entity) for entity in pieces.entities(scope)]
        live = [piece for group in groups for piece in group]
        records = [record for piece in live for record in piece.records()]
        table.add_row(
            plain_line(scope),
            str(sum(bool(group) for group in groups)),
            str(len(live)),
            str(pieces.size(scope) - len(live)),
            str(len({record.question_id for record in records})),
            str(sum(len(piece.records()[0].passage.text) for piece in live)),
            _when(min(record.time for record in records)),
            _when(max(record.time for record in records)),
        )
    if scopes:
        wide_console(120).print(table)


def list_entities(words: Sequence[str], prog: str) -> None:
    """Print the entities by their number of pieces."""
    _, pieces = _open(prog, "List the entities, by their number of pieces.", words)
    counts = [
        (len(group), scope, entity)
        for scope in pieces.scopes()
        for entity in pieces.entities(scope)
        if (group := pieces.under(scope, entity))
    ]
    for count, scope, entity in sorted(counts, key=lambda c: (-c[0], c[2], c[1])):
        print(f"{count:>6}  {plain_line(entity)}  ({plain_line(scope)})")
    print(f"{len(counts)} entities")


def show(words: Sequence[str], prog: str) -> None:
    """Print the pieces of one entity."""
    parser = config_parser(prog, "Show the pieces of one entity, and where they came from.")
    parser.add_argument("entity", help="the entity's name; `list` gives those that are known")
    given = parser.parse_args(words)
    pieces, key = memory_of(config_of(given)).pieces(), entity_key(given.entity)
    matches = [(scope, piece) for scope in pieces.scopes() for piece in pieces.under(scope, key)]
    if not matches:
        raise UserError(f"{plain_line(given.entity)}: no such entity; `ratchet memory list` shows all entities")
    for scope, piece in matches:
        print(format_piece(scope, piece))
    print(f"{len(matches)} piece(s)")


SUBCOMMANDS = {
    "stats": Subcommand("how much is kept in each scope, and on disk (the default)", stats),
    "list": Subcommand("the entities, by their number of pieces", list_entities),
    "show": Subcommand("the pieces of one entity, and where they came from", show),
}


def _open(prog: str, about: str, words: Sequence[str]) -> tuple[Memory, Pieces]:
    """The memory that the command line names, and what is in it."""
    memory = memory_of(config_of(config_parser(prog, about).parse_args(words)))
    return memory, memory.pieces()


def format_piece(scope: str, piece: Piece) -> str:
    """A piece and who left it, for the terminal. Texts from outside bring no control characters along."""
    passage = piece.records()[0].passage
    text = textwrap.shorten(passage.text, SHOWN_CHARACTERS, placeholder=" ...")
    about = (piece.key[:12], scope, passage.id, f"document {passage.document_id}", passage.title)
    body = textwrap.fill(plain_line(text), 100, initial_indent="    ", subsequent_indent="    ")
    lines = ["  ".join(map(plain_line, about)).rstrip(), body]
    for record in piece.records():
        parts = (_when(record.time), f"question {record.question_id}", f"for: {record.text}", f"({record.writer})")
        lines.append("  - " + "  ".join(map(plain_line, parts)))
    return "\n".join(lines)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
