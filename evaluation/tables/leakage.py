"""The table of `ratchet evaluate leakage`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from ratchet.core.console import wide_console
from ratchet.core.tables import new_table, print_table
from ratchet.questions.leakage import SplitLeakage

WIDTH = 160
"""The width in columns of lines that are not printed to a terminal."""


def print_leaks(overlaps: Sequence[SplitLeakage], out: TextIO | None = None) -> None:
    """Print how many questions every two splits share, and which."""
    counted = ("questions", "also there", "sharing a gold document")
    table = new_table("", ("of", "in"), counted)
    for overlap in overlaps:
        leaks = overlap.leaks
        counts = (len(leaks.questions), len(leaks.documents))
        shown = (f"[red]{count}[/]" if count else "0" for count in counts)
        table.add_row(overlap.second, overlap.first, str(overlap.count), *shown)
    print_table(table, out)
    console = wide_console(WIDTH, out)
    for overlap in overlaps:
        for line in overlap.shown(overlap.leaks.questions):
            console.print(line, markup=False)
