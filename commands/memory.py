"""python -m retrieval memory stats|list|show ENTITY --config X.yaml [--scope S]: look into a run's evidence memory."""

from __future__ import annotations

import argparse
import difflib
import textwrap
import time
from collections.abc import Sequence

from rich.table import Table

from commands.arguments import config_of, config_parser
from commands.subcommands import Subcommand, run_subcommand
from ratchet.config import MemoryConfig
from ratchet.console import wide_console
from ratchet.errors import UserError
from ratchet.text import plain_line
from retrieval.memory.memory import Memory
from retrieval.memory.pieces import Piece, Pieces
from retrieval.memory.records import entity_key

ABOUT = "Look into the evidence memory of a config."
SHOWN_CHARACTERS = 600


def main(words: Sequence[str] | None = None, prog: str = "python -m retrieval memory") -> None:
    """Run a subcommand; the default is `stats`."""
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT, otherwise=stats)


def stats(words: Sequence[str], prog: str) -> None:
    """Print how much each scope holds."""
    memory, pieces, scopes = _open(_parser(prog, ABOUT).parse_args(words))
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
    parser = _parser(prog, "List the entities, by their number of pieces.")
    _add_number(parser, "entities")
    given = parser.parse_args(words)
    _, pieces, scopes = _open(given)
    counts = [
        (len(pieces.under(scope, entity)), scope, entity) for scope in scopes for entity in pieces.entities(scope)
    ]
    counts = sorted((c for c in counts if c[0]), key=lambda c: (-c[0], c[2], c[1]))
    for count, scope, entity in counts[: given.n]:
        print(f"{count:>6}  {plain_line(entity)}  ({plain_line(scope)})")
    print(f"{len(counts)} entities" + (f", {given.n} shown; -n shows more" if len(counts) > given.n else ""))


def show(words: Sequence[str], prog: str) -> None:
    """Print the pieces of one entity."""
    parser = _parser(prog, "Show the pieces of one entity, and where they came from.")
    parser.add_argument("entity", nargs="?", help="the entity's name")
    parser.add_argument("--full", action="store_true", help="show whole pieces")
    _add_number(parser, "pieces")
    given = parser.parse_args(words)
    if given.entity is None:
        raise UserError("show: name an entity; `list` gives those that are known")
    _, pieces, scopes = _open(given)
    matches = [(scope, piece) for scope in scopes for piece in pieces.under(scope, entity_key(given.entity))]
    if not matches:
        raise _unknown_entity(pieces, scopes, given.entity)
    for scope, piece in matches[: given.n]:
        print(format_piece(scope, piece, given.full))
    print(f"{len(matches)} piece(s)" + (f", {given.n} shown; -n shows more" if len(matches) > given.n else ""))


SUBCOMMANDS = {
    "stats": Subcommand("how much is kept in each scope, and on disk (the default)", stats),
    "list": Subcommand("the entities, by their number of pieces", list_entities),
    "show": Subcommand("the pieces of one entity, and where they came from", show),
}


def _parser(prog: str, description: str) -> argparse.ArgumentParser:
    parser = config_parser(prog, description)
    parser.add_argument("--scope", help="this scope alone, or all of one name, such as train/round-1; default: all")
    return parser


def _add_number(parser: argparse.ArgumentParser, things: str) -> None:
    parser.add_argument("-n", type=int, default=50, help=f"at most so many {things} (default: 50)")


def _open(given: argparse.Namespace) -> tuple[Memory, Pieces, list[str]]:
    """The memory, what is in it, and the scopes that are asked for."""
    if getattr(given, "n", 1) < 1:
        raise UserError("-n must be at least 1")
    config = config_of(given)
    memory = Memory(config.memory or MemoryConfig(), config.folder / "memory")
    pieces = memory.pieces()
    scopes = [s for s in pieces.scopes() if given.scope in (None, s, s.rpartition(" ")[0])]
    if given.scope is not None and not scopes:
        raise UserError(f"--scope {given.scope}: nothing is kept there{_suggestion(given.scope, pieces.scopes())}")
    return memory, pieces, scopes


def format_piece(scope: str, piece: Piece, full: bool = False) -> str:
    """A piece and who left it, for the terminal. Texts from outside bring no control characters along."""
    passage = piece.records()[0].passage
    text = passage.text if full else textwrap.shorten(passage.text, SHOWN_CHARACTERS, placeholder=" ...")
    about = (piece.key[:12], scope, passage.id, f"document {passage.document_id}", passage.title)
    body = textwrap.fill(plain_line(text), 100, initial_indent="    ", subsequent_indent="    ")
    lines = ["  ".join(map(plain_line, about)).rstrip(), body]
    for record in piece.records():
        parts = (_when(record.time), f"question {record.question_id}", f"for: {record.text}", f"({record.writer})")
        lines.append("  - " + "  ".join(map(plain_line, parts)))
    return "\n".join(lines)


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _unknown_entity(pieces: Pieces, scopes: Sequence[str], entity: str) -> UserError:
    known = {name for scope in scopes for name in pieces.entities(scope)}
    return UserError(f"{plain_line(entity)}: nothing is kept under this name{_suggestion(entity_key(entity), known)}")


def _suggestion(name: str, known: Sequence[str] | set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=3)
    return f"; there is {', '.join(map(plain_line, close))}" if close else "; `list` gives what there is"
