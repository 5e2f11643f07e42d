"""Consoles that show text of documents, models and data files as text."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ratchet.core.text import plain_text

NARROW = 80
"""The columns of a narrow terminal, in which every table is complete."""


class PlainConsole(Console):
    """A console that shows text as text: what documents, models and data files say never commands the terminal.

    Colours and styles of our own are no part of a text, and stay.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain_text(segment.text), segment.style)


def wide_console(width: int, out: TextIO | None = None) -> Console:
    """For tables: as wide as the terminal or COLUMNS says, or `width` columns where the output goes elsewhere."""
    console = PlainConsole(file=out or sys.stdout, highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        return console
    return PlainConsole(file=out or sys.stdout, highlight=False, width=width)
