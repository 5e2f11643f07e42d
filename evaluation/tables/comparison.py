"""An evaluation in a terminal: what one decides by on one screen, and base against trained in every measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ratchet.core.tables import NARROW, PlainTable, new_table, print_table, wide_console
from ratchet.evaluation.formats import (
    SECTIONS,
    format_difference,
    format_estimate,
    format_mean,
    format_p_value,
    measure_row,
    shown_measures,
)
from ratchet.evaluation.headline import changes_sentence, remarks, short_verdict
from ratchet.evaluation.measures.complementarity import complementarity_table
from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.measures import FORMS, measure_of, strict_form
from ratchet.evaluation.results import BASE, BASE_AGAIN, TRAINED, Arm, Results
from ratchet.evaluation.tables.suite import mean_cost, mean_gain

MEANS = "mean and difference from base, paired by question [95% bootstrap interval]"
# Resampling equal values shows no spread, which is no proof that there is none: ten wrong answers leave room for 30%.
CAPTION = """\
difference: trained - base, with its 95% bootstrap interval over questions
(none where all are equal); p: paired sign-flip test; (number): on so many
questions, those on which both have a value. The intervals of both means are in
the report and in results.json."""


def print_summary(suite: Sequence[Results], out: TextIO | None = None) -> None:
    """Print the verdict, the methods with their cost, the kinds of questions, and where wrong answers are lost."""
    console = wide_console(NARROW, out)
    for results in suite:
        if len(suite) == 1 or results.arm(TRAINED):
            of_set = f"{results.title}: " if len(suite) > 1 else ""
            console.print(of_set + short_verdict(results), style="bold", markup=False)
    for primary in dict.fromkeys(results.primary for results in suite):
        console.print()
        print_table(_method_table([results for results in suite if results.primary == primary]), out, wraps=True)
    for results in suite:
        print_null_counts(results, [results.primary], out)
    console.print()
    if len(suite) == 1:
        [results] = suite
        changes = changes_sentence(results.changes(TRAINED), results.changes(BASE_AGAIN))
        comparison = results.comparison(TRAINED)
        told = remarks(comparison, results.primary, results.label_floor, results.selection) if comparison else ()
        for line in (*told, *filter(None, [changes])):
            console.print(line, markup=False)
    console.print("All measures: in the report, and by `ratchet evaluate table --all-measures`.")


def _method_table(suite: Sequence[Results]) -> Table:
    """The methods on question sets with one primary measure, and what a question costs them. On one set, below a method
    also the other forms of the measure that are outside its interval, and the trained model by kind of question."""
    first, primary = suite[0], suite[0].primary
    if len(suite) > 1:
        title, means = f"{len(suite)} question sets: {measure_of(primary).title}", [results.title for results in suite]
    else:
        samples = f", {first.samples} samples each" if first.samples > 1 else ""
        title = f"Round {first.round}, {first.title}: {first.questions} questions{samples}"
        means = [measure_of(primary).heading]
    table = new_table(title, ["method"], [*means, "difference", "calls", "tokens"], MEANS)
    table.show_edge = False
    for arm in first.arms:
        arms = [found for results in suite if (found := results.arm(arm.name)) is not None]
        if len(arms) < len(suite):
            continue
        cells: list[str | Text] = [format_mean(one.measures.get(primary), primary) for one in arms]
        if len(suite) > 1:
            gain = None if arm.name == BASE else mean_gain([results.arms[0] for results in suite], arms, first)
            cells.append(format_estimate(gain and Difference(**gain.model_dump(exclude={"nulls"})), primary))
        else:
            cells = _cells(arm.measures.get(primary), first.difference(arm.name), primary)
        costs = mean_cost(arms, "calls"), mean_cost(arms, "prompt_tokens", "new_tokens")
        table.add_row("trained" if arm.name == TRAINED else arm.name, *cells, *costs)
        for label, row in _rows_below(first, arm) if len(suite) == 1 else ():
            table.add_row(f"  {label}", *row)
    return table


def _rows_below(results: Results, arm: Arm) -> Iterator[tuple[str, list[str | Text]]]:
    primary, main = results.primary, arm.measures.get(results.primary)
    for name in (strict_form(primary) + form for form in FORMS):
        other = arm.measures.get(name)
        if other is not None and other.mean is not None and main is not None and not _covers(main, other.mean):
            yield measure_of(name).form, _cells(other, results.difference(arm.name, name), name)
    if arm is (results.arm(TRAINED) or results.arms[0]):
        comparison = results.comparison(arm.name)
        for kind, measures in arm.kinds.items():
            difference = comparison.kinds.get(kind) if comparison else None
            yield f"{kind} ({measures[primary].n})", _cells(measures[primary], difference, primary)


def _covers(estimate: Estimate, value: float) -> bool:
    return estimate.low is None or estimate.high is None or estimate.low <= value <= estimate.high


def _cells(estimate: Estimate | None, difference: Difference | None, name: str) -> list[str | Text]:
    return [format_estimate(estimate, name), format_difference(difference, name) if difference else ""]


def print_measures(results: Results, out: TextIO | None = None) -> None:
    """Print base against trained in every measure."""
    trained = results.arm(TRAINED)
    title = f"Round {results.round}, {results.split} split: every measure"
    table = PlainTable(title=Text(title), caption=CAPTION, box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.caption_justify = "left"
    table.add_column("")
    for column in ("base", *(("trained", "difference", "p") if trained is not None else ())):
        table.add_column(column, justify="right", no_wrap=True)
    for group, heading in SECTIONS:
        table.add_section()
        table.add_row(Text(heading, "bold"))
        for name in shown_measures(results, group):
            row, title = measure_row(results, name), measure_of(name).title
            title = title.replace(" (rule)", "").replace(" (judge)", "").replace(",", "")
            title += f" ({row.paired})" if row.paired else ""
            if trained is None:
                table.add_row(title, format_estimate(row.base, name))
                continue
            p = format_p_value(row.difference).replace("0.", ".", 1)
            means = [format_mean(one, name) for one in (row.base, row.trained)]
            table.add_row(title, *means, format_difference(row.difference, name), p)
    print_table(table, out, wraps=True)


def print_candidates(results: Results, out: TextIO | None = None) -> None:
    """Print the complementarity of base and trained, where their system keeps candidate answers."""
    for arm in results.arms:
        if arm.name in (BASE, TRAINED) and arm.name in results.complementarity:
            title = f"{results.title}: the answers that {arm.system} ({arm.name}) chose between"
            print_table(complementarity_table(results.complementarity[arm.name], title), out)


def print_null_counts(results: Results, names: Sequence[str], out: TextIO | None = None) -> None:
    """Print how many trajectories of each arm have no value of these measures: no mean includes them."""
    console = wide_console(NARROW, out)
    for arm in results.arms:
        counts = [
            f"{name} {arm.measures[name].nulls}" for name in names if name in arm.measures and arm.measures[name].nulls
        ]
        if counts:
            line = f"{results.title}, {arm.name}: trajectories without a value, skipped: {', '.join(counts)}"
            console.print(line, markup=False)
