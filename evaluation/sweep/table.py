"""A sweep as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.markup import escape
from rich.table import Table

from ratchet.core.console import wide_console
from ratchet.core.tables import new_table, print_table
from ratchet.evaluation.formats import format_difference, format_estimate, format_mean, format_p, paired_count
from ratchet.evaluation.headline import baseline_sentence
from ratchet.evaluation.measures.measures import measure_of
from ratchet.evaluation.sweep.records import CellResult, SweepResults

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
trajectory; (number): a difference on so many questions, those on which both have a value"""


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
        if cells := [cell for cell in results.cells if cell.stage == stage]:
            print_table(_table(results, title, cells), out)
    sentences = (*(choice.sentence for choice in results.choices), *untrained_sentences(results))
    for line in (*sentences, *results.undecided, *results.notes):
        console.print(line, markup=False)
    if results.missing:
        console.print(f"{len(results.missing)} cell(s) are missing:", style="bold")
        for line in results.missing:
            console.print(f"  {line}", markup=False)


def _table(results: SweepResults, title: str, cells: Sequence[CellResult]) -> Table:
    """The cells of one stage, by question set and system."""
    tests = sum(cell.p_holm is not None for cell in cells)
    caption = CAPTION.format(tests=f"{tests} difference{'' if tests == 1 else 's'}")
    numbers = ("n", "mean", "difference", "p", *COSTS.values())
    table = new_table(title, ("system", "checkpoint"), numbers, escape(caption))
    chosen = {(choice.system, choice.checkpoint) for choice in results.choices}
    systems = list(results.systems)
    for asked in results.sets:
        of_set = [cell for cell in cells if cell.split == asked.name]
        if of_set:
            table.add_section()
            heading = f"{asked.title}: {measure_of(asked.measure).title}, {asked.questions} questions"
            table.add_row(f"[bold]{escape(heading)}[/bold]")
        for cell in sorted(of_set, key=lambda cell: systems.index(cell.system)):
            estimate = cell.arm.measures.get(asked.measure)
            table.add_row(
                escape(cell.system),
                escape(cell.checkpoint) + (" *" if (cell.system, cell.checkpoint) in chosen else ""),
                str(estimate.n if estimate else 0),
                format_estimate(estimate, asked.measure),
                format_difference(cell.difference.model_copy(update={"p": cell.p_holm}), asked.measure)
                + paired_count(cell.difference, estimate)
                if cell.difference
                else "",
                "" if cell.p_holm is None else format_p(cell.p_holm),
                *(format_mean(cell.arm.measures.get(name), name) for name in COSTS),
            )
    return table
