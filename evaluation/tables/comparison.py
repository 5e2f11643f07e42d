"""Results as tables for a terminal: base against trained first, then the verdict in one sentence."""

from __future__ import annotations

from typing import TextIO

from rich.markup import escape
from rich.table import Table

from evaluation.measures.complementarity import complementarity_table
from evaluation.measures.measures import BY_NAME
from evaluation.results import BASE, TRAINED, Arm, Difference, Estimate, Results
from ratchet.command import wide_console

WIDTH = 118
# Resampling equal values shows no spread, which is no proof that there is none: ten wrong answers leave room for 30%.
CAPTION = "mean \\[95% bootstrap interval over questions; none where all are equal]; p: paired sign-flip test"
SECTIONS = (
    ("quality", "Answers"),
    ("retrieval", "What was found"),
    ("ending", "How it ended, share"),
    ("cost", "Cost of a question"),
)


def print_results(results: Results, out: TextIO | None = None) -> None:
    console = wide_console(WIDTH, out)
    trained = results.arm(TRAINED)
    title = (
        f"Round {results.round}, {results.split} split: {results.questions} questions, {results.samples} sample(s) each"
    )
    console.print(main_table(results, trained, title))
    if results.arms[0].kinds:
        console.print(kind_table(results, trained))
    console.print(f"\n{escape(results.verdict)}", style="bold")


def print_candidates(results: Results, out: TextIO | None = None) -> None:
    """What base and trained chose between, where their system keeps candidate answers."""
    for arm in results.arms:
        if arm.name in (BASE, TRAINED) and arm.name in results.complementarity:
            title = f"{results.title}: the answers that {arm.system} ({arm.name}) chose between"
            wide_console(WIDTH, out).print(complementarity_table(results.complementarity[arm.name], title))


def print_left_out(results: Results, out: TextIO | None = None) -> None:
    """How many trajectories have no value, arm by arm: they are in no mean."""
    console = wide_console(WIDTH, out)
    for arm in results.arms:
        counts = [
            f"{name} {found.nulls}"
            for name in results.shown("quality")
            if (found := arm.measures.get(name)) is not None and found.nulls
        ]
        if counts:
            of = f"{escape(results.title)}, {escape(arm.name)}"
            console.print(f"  {of}: trajectories without a value, left out: {', '.join(counts)}")


def main_table(results: Results, trained: Arm | None, title: str) -> Table:
    table = Table(title=title, caption=CAPTION)
    table.add_column("")
    table.add_column("base", justify="right")
    if trained is not None:
        table.add_column("trained", justify="right")
        table.add_column("difference", justify="right")
        table.add_column("p", justify="right")
    comparison = results.comparison(TRAINED)
    for group, heading in SECTIONS:
        table.add_section()
        table.add_row(f"[bold]{heading}[/bold]")
        for name in results.shown(group):
            cells = [BY_NAME[name].title, estimate(results.arms[0].measures.get(name), name)]
            if trained is not None and comparison is not None:
                found = comparison.measures.get(name)
                cells += [estimate(trained.measures.get(name), name), difference(found, name), p_value(found)]
            table.add_row(*cells)
    return table


def kind_table(results: Results, trained: Arm | None) -> Table:
    primary = results.primary
    table = Table(title=f"{BY_NAME[primary].title}, by kind of question")
    for heading in ("kind", "questions", "base", *(("trained", "difference") if trained else ())):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    comparison = results.comparison(TRAINED)
    for kind, measures in results.arms[0].kinds.items():
        found = measures.get(primary)
        row = [escape(kind), str(found.n if found else 0), estimate(found, primary)]
        if trained is not None and comparison is not None:
            row.append(estimate(trained.kinds.get(kind, {}).get(primary), primary))
            row.append(difference(comparison.kinds.get(kind), primary))
        table.add_row(*row)
    return table


def number(value: float | None, digits: int, sign: bool = False) -> str:
    if value is None:
        return "-"
    value = round(value, digits) + 0.0  # no minus sign on a rounded zero
    return f"{value:{'+' if sign else ''}.{digits}f}"


def interval(found: Estimate | Difference, digits: int) -> str:
    """'[0.310, 0.520]'; empty where there is none, or all values were equal."""
    if found.low is None or found.high is None or found.low == found.high:
        return ""
    return f"[{number(found.low, digits)}, {number(found.high, digits)}]"


def mean(found: Estimate | None, name: str) -> str:
    return number(found.mean if found else None, BY_NAME[name].digits)


def estimate(found: Estimate | None, name: str) -> str:
    """'0.412 [0.310, 0.520]' as rich markup, '-' where there is no value."""
    if found is None or found.mean is None:
        return "-"
    digits = BY_NAME[name].digits
    between = interval(found, digits)
    return number(found.mean, digits) + (f" [dim]{escape(between)}[/dim]" if between else "")


def difference(found: Difference | None, name: str) -> str:
    """'+0.33 [0.24, 0.42]', green where clearly better and red where clearly worse."""
    if found is None or found.mean is None:
        return "-"
    digits = BY_NAME[name].digits
    text = f"{number(found.mean, digits, sign=True)} {escape(interval(found, digits))}".rstrip()
    better = BY_NAME[name].better
    if not found.clear or not better:
        return text
    return f"[{'green' if (found.mean > 0) == (better == 'higher') else 'red'}]{text}[/]"


def p_value(found: Difference | None) -> str:
    return "-" if found is None or found.p is None else p_text(found.p)


def p_text(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"
