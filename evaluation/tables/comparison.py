"""One round as a table for a terminal: base against trained first, then the verdict in one sentence."""

from __future__ import annotations

from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ratchet.core.tables import PlainTable, print_table, wide_console
from ratchet.evaluation.formats import (
    SECTIONS,
    format_difference,
    format_estimate,
    format_mean,
    format_p_value,
    kind_rows,
    measure_row,
    shown_measures,
)
from ratchet.evaluation.headline import changes_sentence
from ratchet.evaluation.measures.complementarity import complementarity_table
from ratchet.evaluation.measures.measures import measure_of
from ratchet.evaluation.results import BASE, BASE_AGAIN, TRAINED, Arm, Results

WIDTH = 118
# Resampling equal values shows no spread, which is no proof that there is none: ten wrong answers leave room for 30%.
CAPTION = """\
mean [95% bootstrap interval over questions; none where all are equal]; p: paired sign-flip test
(number): on so many questions, those on which both have a value"""
NARROW_CAPTION = """\
difference: trained - base, with its 95% bootstrap interval over questions
(none where all are equal); p: paired sign-flip test; (number): on so many
questions, those on which both have a value. The intervals of both means are in
a wider terminal and in results.json."""


def print_results(results: Results, out: TextIO | None = None) -> None:
    """Print base against trained by measure and by kind of question, then the verdict."""
    console = wide_console(WIDTH, out)
    trained = results.arm(TRAINED)
    title = (
        f"Round {results.round}, {results.split} split: {results.questions} questions, {results.samples} sample(s) each"
    )
    print_table(_main_table(results, trained, title), out, narrow=_main_table(results, trained, title, intervals=False))
    if results.arms[0].kinds:
        print_table(_kind_table(results, trained), out)
    console.print(f"\n{results.verdict}", style="bold", markup=False)
    if line := changes_sentence(results.changes(TRAINED), results.changes(BASE_AGAIN)):
        console.print(line)


def print_candidates(results: Results, out: TextIO | None = None) -> None:
    """Print the complementarity of base and trained, where their system keeps candidate answers."""
    for arm in results.arms:
        if arm.name in (BASE, TRAINED) and arm.name in results.complementarity:
            title = f"{results.title}: the answers that {arm.system} ({arm.name}) chose between"
            print_table(complementarity_table(results.complementarity[arm.name], title), out)


def print_null_counts(results: Results, out: TextIO | None = None) -> None:
    """Print how many trajectories of each arm have no value: no mean includes them."""
    console = wide_console(WIDTH, out)
    for arm in results.arms:
        counts = [
            f"{name} {estimate.nulls}"
            for name in shown_measures(results, "quality")
            if (estimate := arm.measures.get(name)) is not None and estimate.nulls
        ]
        if counts:
            line = f"  {results.title}, {arm.name}: trajectories without a value, skipped: {', '.join(counts)}"
            console.print(line, markup=False)


def _main_table(results: Results, trained: Arm | None, title: str, intervals: bool = True) -> Table:
    """Without `intervals` the narrower table, whose differences alone have theirs."""
    if intervals:
        table = PlainTable(title=Text(title), caption=Text(CAPTION))
    else:
        table = PlainTable(title=Text(title), caption=NARROW_CAPTION, box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.caption_justify = "left"
    table.add_column("")
    for column in ("base", *(("trained", "difference", "p") if trained is not None else ())):
        table.add_column(column, justify="right", no_wrap=True)
    for group, heading in SECTIONS:
        table.add_section()
        table.add_row(Text(heading, "bold"))
        for name in shown_measures(results, group):
            row, title = measure_row(results, name), measure_of(name).title
            if not intervals:
                title = title.replace(" (rule)", "").replace(" (judge)", "").replace(",", "")
            title += f" ({row.paired})" if row.paired else ""
            if trained is None:
                table.add_row(title, format_estimate(row.base, name))
                continue
            means = [(format_estimate if intervals else format_mean)(one, name) for one in (row.base, row.trained)]
            p = format_p_value(row.difference)
            p = p if intervals else p.replace("0.", ".", 1)
            table.add_row(title, *means, format_difference(row.difference, name), p)
    return table


def _kind_table(results: Results, trained: Arm | None) -> Table:
    primary = results.primary
    table = PlainTable(title=f"{measure_of(primary).title}, by kind of question")
    for heading in ("kind", "questions", "base", *(("trained", "difference") if trained else ())):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for row in kind_rows(results):
        n = row.difference.n if row.difference else row.base.n if row.base and trained is None else 0
        cells: list[str | Text] = [str(n), format_estimate(row.base, primary)]
        if trained is not None:
            cells += [format_estimate(row.trained, primary), format_difference(row.difference, primary)]
        table.add_row(row.name, *cells)
    return table
