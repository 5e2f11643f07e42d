"""A sweep as tables for a terminal, whose rows the page shows too, and as sweep.csv."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TextIO

from rich.markup import escape
from rich.table import Table

from evaluation.formats import format_interval, format_mean, format_number, format_p
from evaluation.headline import baseline_sentence
from evaluation.measures.estimates import Difference, Estimate
from evaluation.measures.measures import BY_NAME
from evaluation.sweep.records import CellResult, SweepResults
from ratchet.console import wide_console
from ratchet.tables import new_table, print_table
from ratchet.text import escape_formula

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
mean [95% bootstrap interval over questions; none where all are equal]; difference: paired by question, against the same
system on the base model; p: paired sign-flip test, Holm's correction over the {tests} of this table; costs are of one
trajectory"""
HEADINGS = (
    *("stage", "set", "questions_digest", "system", "checkpoint", "policy", "run", "round", "step"),
    *("measure", "compared", "mean", "low", "high", "n", "nulls"),
    *("difference", "difference_low", "difference_high", "p", "p_holm"),
)


@dataclass(frozen=True)
class Row:
    """A cell's row, as text."""

    system: str
    checkpoint: str
    n: int
    mean: str
    interval: str
    difference: str
    difference_interval: str
    p: str
    costs: tuple[str, ...]
    chosen: bool
    tone: str
    """'good' or 'bad' where p is below 0.05 after Holm's correction, else empty."""


def rows_of(results: SweepResults, stage: str) -> dict[str, list[Row]]:
    """By question set with a finished cell, its rows, system by system."""
    chosen = {(choice.system, choice.checkpoint) for choice in results.choices}
    systems = list(results.systems)
    rows: dict[str, list[Row]] = {}
    for cell in sorted(results.cells, key=lambda cell: systems.index(cell.system)):
        if cell.stage == stage:
            row = _row(cell, results.set(cell.split).measure, (cell.system, cell.checkpoint) in chosen)
            rows.setdefault(cell.split, []).append(row)
    return {facts.name: rows[facts.name] for facts in results.sets if facts.name in rows}


def _row(cell: CellResult, measure: str, chosen: bool) -> Row:
    estimate = cell.arm.measures.get(measure, Estimate(mean=None, n=0))
    difference = cell.difference or Difference(n=0)
    digits, better = BY_NAME[measure].digits, BY_NAME[measure].better
    tone = ""
    if cell.p_holm is not None and cell.p_holm < 0.05 and difference.mean:
        tone = "good" if (difference.mean > 0) == (better == "higher") else "bad"
    return Row(
        system=cell.system,
        checkpoint=cell.checkpoint,
        n=estimate.n,
        mean=format_number(estimate.mean, digits),
        interval=format_interval(estimate, digits),
        difference=format_number(difference.mean, digits, sign=True) if cell.difference else "",
        difference_interval=format_interval(difference, digits),
        p="" if cell.p_holm is None else format_p(cell.p_holm),
        costs=tuple(format_mean(cell.arm.measures.get(name), name) for name in COSTS),
        chosen=chosen,
        tone=tone,
    )


def caption(results: SweepResults, stage: str) -> str:
    """What the numbers of a stage's table mean, with the number of tests."""
    tests = sum(cell.p_holm is not None for cell in results.cells if cell.stage == stage)
    return CAPTION.format(tests=f"{tests} difference{'' if tests == 1 else 's'}")


def heading(results: SweepResults, name: str) -> str:
    """A question set's heading: its title, measure and number of questions."""
    asked = results.set(name)
    return f"{asked.title}: {BY_NAME[asked.measure].title}, {asked.questions} questions"


def untrained_sentences(results: SweepResults) -> list[str]:
    """For each tested choice, how it compares with the best untrained system on the test set."""
    return [
        f"{cell.split}, {cell.system}, {cell.checkpoint}: "
        f"{baseline_sentence(cell.best_untrained, results.set(cell.split).measure)}"
        for cell in results.cells
        if cell.best_untrained is not None
    ]


def print_sweep(results: SweepResults, out: TextIO | None = None) -> None:
    """Print the tables of both stages, then the choices, notes and missing cells."""
    console = wide_console(WIDTH, out)
    for stage, title in STAGES.items():
        rows = rows_of(results, stage)
        if rows:
            print_table(_table(results, stage, title, rows), out)
    sentences = (*(choice.sentence for choice in results.choices), *untrained_sentences(results))
    for line in (*sentences, *results.undecided, *results.notes):
        console.print(line, markup=False)
    if results.missing:
        console.print(f"{len(results.missing)} cell(s) are missing:", style="bold")
        for line in results.missing:
            console.print(f"  {line}", markup=False)


def _table(results: SweepResults, stage: str, title: str, rows: dict[str, list[Row]]) -> Table:
    numbers = ("n", "mean", "difference", "p", *COSTS.values())
    table = new_table(title, ("system", "checkpoint"), numbers, escape(caption(results, stage)))
    for name, of_set in rows.items():
        table.add_section()
        table.add_row(f"[bold]{escape(heading(results, name))}[/bold]")
        for row in of_set:
            colour = {"good": "green", "bad": "red", "": "none"}[row.tone]
            table.add_row(
                escape(row.system),
                escape(row.checkpoint) + (" *" if row.chosen else ""),
                str(row.n),
                f"{row.mean} [dim]{escape(row.interval)}[/dim]",
                f"[{colour}]{row.difference} {escape(row.difference_interval)}[/]",
                row.p,
                *row.costs,
            )
    return table


def to_csv(results: SweepResults) -> str:
    """One row per cell and measure, for a spreadsheet (RFC 4180)."""
    out = io.StringIO()
    writer = csv.DictWriter(out, HEADINGS, lineterminator="\r\n")
    writer.writeheader()
    checkpoints = {checkpoint.name: checkpoint for checkpoint in results.checkpoints}
    for cell in results.cells:
        checkpoint, asked = checkpoints[cell.checkpoint], results.set(cell.split)
        place = {"stage": cell.stage, "set": cell.split, "questions_digest": asked.digest, "system": cell.system}
        place |= {"checkpoint": cell.checkpoint, "policy": checkpoint.policy, "run": checkpoint.run}
        numbers = {"round": checkpoint.round or None, "step": checkpoint.step}
        head = {heading: escape_formula(text) for heading, text in place.items()} | numbers
        for name, estimate in cell.arm.measures.items():
            row = head | estimate.model_dump() | {"measure": name}
            if name == asked.measure:
                change = cell.difference or Difference(n=0)
                row |= {"compared": "yes", "difference": change.mean, "p": change.p, "p_holm": cell.p_holm}
                row |= {"difference_low": change.low, "difference_high": change.high}
            writer.writerow(row)
    return out.getvalue()
