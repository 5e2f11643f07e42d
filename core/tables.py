"""Consoles that show text from outside as text, and tables that are complete at any width: one that does not fit is
printed as a block of lines for each row."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ratchet.core.text import plain_text

NARROW = 80
"""The columns of a narrow terminal, in which every table is complete."""


class PlainConsole(Console):
    """A console that shows text as text: what documents, models and data files say never commands the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain_text(segment.text), segment.style)


def wide_console(width: int, out: TextIO | None = None) -> Console:
    """Open a console for tables, as wide as the terminal or COLUMNS says, or `width` columns where the output goes
    elsewhere."""
    console = PlainConsole(file=out or sys.stdout, highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        return console
    return PlainConsole(file=out or sys.stdout, highlight=False, width=width)


GAP = 3
"""Spaces between two cells in a block."""


INTERVAL = r" \[[^\[\]]*\]$"


class PlainTable(Table):
    """A table of plain texts, in which no bracket is markup. The interval at the end of a number is dim."""

    def add_column(self, header: Any = "", *others: Any, **options: Any) -> None:
        super().add_column(Text(header), *others, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        texts = [Text(cell) if isinstance(cell, str) else cell for cell in cells]
        for text, column in zip(texts, self.columns, strict=False):
            if column.justify == "right" and not text.spans and not text.style:
                text.highlight_regex(INTERVAL, "dim")
        super().add_row(*texts, **options)


def new_table(
    title: str, texts: Iterable[str], numbers: Iterable[str], caption: str = "", padding: tuple[int, ...] = (0, 0, 0, 1)
) -> Table:
    """Make an empty table with columns of texts, then of numbers, which are never broken into lines."""
    table = PlainTable(title=Text(title), box=SIMPLE_HEAD, padding=padding, title_justify="left")  # type: ignore[arg-type]
    table.caption, table.caption_justify = Text(caption), "left"
    for heading in texts:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def print_table(table: Table, out: TextIO | None = None, wraps: bool = False) -> None:
    """Print a table without cutting a cell, in a terminal's width; in a file or pipe, as wide as its columns need.

    With `wraps`, texts in columns that allow it may be broken into lines. Where the table does not fit, each row is a
    block: the first cell, then the others with their headings.
    """
    console = wide_console(max(NARROW, _width(table)), out)
    if _width(table, wraps) <= console.width:
        console.print(table)
    else:
        _print_blocks(table, console)


def _width(table: Table, wraps: bool = False) -> int:
    console = Console(width=10_000)
    for column in table.columns:
        if column.no_wrap:  # rich takes a column's longest word for its least width
            column.min_width = max(console.measure(cell).maximum for cell in (column.header, *column.cells))
    found = console.measure(table)
    return found.minimum if wraps else found.maximum


def _print_blocks(table: Table, console: Console) -> None:
    if table.title:
        console.print(table.title, style="italic")
    headings = [str(column.header).replace("-\n", "").replace("\n", " ") for column in table.columns]
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        first, *others = [cell.copy() if isinstance(cell, Text) else Text.from_markup(str(cell)) for cell in cells]
        filled = [(heading, text) for heading, text in zip(headings[1:], others, strict=True) if text.plain]
        if first.plain:
            console.print()
            first.stylize("bold")
            console.print(first)
        for line in _lines(filled, console.width - 2):
            console.print(Text("  ") + line)
    if table.caption:
        console.print()
        console.print(table.caption, style="dim italic")
    console.print()


def _lines(cells: list[tuple[str, Text]], width: int) -> Iterator[Text]:
    """Yield 'heading: value' of the cells, as many on a line as fit."""
    line = Text()
    for heading, text in cells:
        cell = Text.from_markup(f"{heading}: " if heading else "") + text
        if line and line.cell_len + GAP + cell.cell_len > width:
            yield line
            line = Text()
        line = line + Text(" " * GAP) + cell if line else cell
    if line:
        yield line
