"""One adapter on the tasks of all members that it was trained for: a row per member and question set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.markup import escape

from evaluation.formats import format_difference, format_number, format_p
from evaluation.measures.estimates import Difference
from evaluation.measures.measures import BY_NAME
from evaluation.measures.statistics import holm
from evaluation.results import TRAINED, Results
from ratchet.tables import new_table, print_table

CAPTION = """\
mean over questions; difference with its 95% bootstrap interval, paired by question; p: paired sign-flip test, Holm's \
correction over all rows"""


def print_members(members: Sequence[tuple[str, Results]], out: TextIO | None = None) -> None:
    """Print a row for the results of each (member, question set), all of them with the shared adapter."""
    gains = [_gain(results) for _, results in members]
    adjusted = iter(holm([gain.p for gain in gains if gain.p is not None]))
    texts, numbers = ("member", "system", "questions", "measure"), ("n", "base", "adapter", "difference", "p")
    title = f"One adapter, {len(dict(members))} systems"
    table = new_table(title, texts, numbers, CAPTION, (0, 1))
    for (name, results), gain in zip(members, gains, strict=True):
        p = next(adjusted) if gain.p is not None else None
        table.add_row(
            escape(name),
            escape(results.arms[0].system),
            escape(results.title),
            BY_NAME[results.primary].short,
            str(gain.n),
            format_number(gain.before, 3),
            format_number(gain.after, 3),
            format_difference(gain, results.primary),
            "-" if p is None else format_p(p),
        )
    print_table(table, out)


def _gain(results: Results) -> Difference:
    comparison = results.comparison(TRAINED)
    return comparison.measures.get(results.primary, Difference(n=0)) if comparison else Difference(n=0)
