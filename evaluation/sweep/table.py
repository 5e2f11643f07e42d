"""A sweep as tables for a terminal; the rows are the page's too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from evaluation.measures.measures import BY_NAME
from evaluation.results import Difference, Estimate
from evaluation.sweep.records import CellResult, SweepResults
from evaluation.tables.comparison import interval, mean, number, p_text
from evaluation.tables.suite import print_wide
from ratchet.command import wide_console

WIDTH = 150
COSTS = {
    "calls": "calls",
    "searches": "searches",
    "prompt_tokens": "tokens in",
    "new_tokens": "tokens out",
    "seconds": "s",
}
STAGES = {"test": "Test: the chosen checkpoints, measured once", "dev": "Dev: every checkpoint"}
CAPTION = """\
mean [95% bootstrap interval over questions; none where all are equal]; difference: paired by question, against {base};
p: paired sign-flip test, Holm's correction over the {tests} of this table; costs are of one trajectory"""


@dataclass(frozen=True)
class Row:
    system: str
    checkpoint: str
    n: int
    mean: str
    interval: str
    difference: str
    difference_interval: str
    p: str
    costs: tuple[str, ...]
    price: str
    chosen: bool
    tone: str
    """'good' or 'bad' where p is below 0.05 after Holm's correction."""


def rows_of(results: SweepResults, stage: str) -> dict[str, list[Row]]:
    """By question set, those that have a finished cell: system by system."""
    chosen = {(choice.system, choice.checkpoint) for choice in results.choices}
    rows: dict[str, list[Row]] = {}
    for asked in results.sets:
        cells = [cell for cell in results.cells if cell.split == asked.name and cell.stage == stage]
        if cells:
            cells.sort(key=lambda cell: list(results.systems).index(cell.system))
            marks = [(cell.system, cell.checkpoint) in chosen for cell in cells]
            rows[asked.name] = [_row(cell, asked.measure, mark) for cell, mark in zip(cells, marks, strict=True)]
    return rows


def _row(cell: CellResult, measure: str, chosen: bool) -> Row:
    found = cell.arm.measures.get(measure, Estimate(mean=None, n=0))
    difference = cell.difference or Difference(n=0)
    digits, better = BY_NAME[measure].digits, BY_NAME[measure].better
    tone = ""
    if cell.p_holm is not None and cell.p_holm < 0.05 and difference.mean:
        tone = "good" if (difference.mean > 0) == (better == "higher") else "bad"
    return Row(
        system=cell.system,
        checkpoint=cell.checkpoint,
        n=found.n,
        mean=number(found.mean, digits),
        interval=interval(found, digits),
        difference=number(difference.mean, digits, sign=True) if cell.difference else "",
        difference_interval=interval(difference, digits),
        p="" if cell.p_holm is None else p_text(cell.p_holm),
        costs=tuple(mean(cell.arm.measures.get(name), name) for name in COSTS),
        price="" if cell.price is None else f"{cell.price:.4g}",
        chosen=chosen,
        tone=tone,
    )


def caption(results: SweepResults, stage: str) -> str:
    of_stage = [cell for cell in results.cells if cell.stage == stage]
    bases = sorted({"/".join(cell.base.split("/")[:2]) for cell in of_stage if cell.base})
    tests = sum(cell.p_holm is not None for cell in of_stage)
    differences = f"{tests} difference{'' if tests == 1 else 's'}"
    return CAPTION.format(base=", ".join(bases) or "nothing", tests=differences)


def heading(results: SweepResults, name: str) -> str:
    asked = results.set(name)
    return f"{asked.title}: {BY_NAME[asked.measure].title}, {asked.questions} questions"


def print_sweep(results: SweepResults, out: TextIO | None = None) -> None:
    console = wide_console(WIDTH, out)
    for stage, title in STAGES.items():
        rows = rows_of(results, stage)
        if rows:
            print_wide(_table(results, stage, title, rows), out)
    for average in results.averages:
        found = f"{number(average.estimate.mean, 3)} {interval(average.estimate, 3)}"
        console.print(
            f"mean over the {average.stage} sets, {average.system}, {average.checkpoint}: {found}", markup=False
        )
    for line in (*(choice.sentence for choice in results.choices), *results.undecided, *results.notes):
        console.print(line, markup=False)
    if results.missing:
        console.print(f"{len(results.missing)} cell(s) are missing:", style="bold")
        for line in results.missing:
            console.print(f"  {line}", markup=False)


def _table(results: SweepResults, stage: str, title: str, rows: dict[str, list[Row]]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 0, 0, 1), title_justify="left")
    table.caption, table.caption_justify = escape(caption(results, stage)), "left"
    priced = any(row.price for found in rows.values() for row in found)
    for name in ("system", "checkpoint"):
        table.add_column(name, no_wrap=True)
    for name in ("n", "mean", "difference", "p", *COSTS.values(), *(["price"] if priced else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for name, found in rows.items():
        table.add_section()
        table.add_row(f"[bold]{escape(heading(results, name))}[/bold]")
        for row in found:
            colour = {"good": "green", "bad": "red", "": "none"}[row.tone]
            table.add_row(
                escape(row.system),
                escape(row.checkpoint) + (" *" if row.chosen else ""),
                str(row.n),
                f"{row.mean} [dim]{escape(row.interval)}[/dim]",
                f"[{colour}]{row.difference} {escape(row.difference_interval)}[/]",
                row.p,
                *row.costs,
                *([row.price] if priced else []),
            )
    return table
