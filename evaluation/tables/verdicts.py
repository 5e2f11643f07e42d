"""Verdicts as tables for a terminal: the confusion of every arm, and its uncertain verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.markup import escape
from rich.table import Table

from ratchet.core.console import wide_console
from ratchet.core.errors import UserError
from ratchet.core.tables import new_table, print_table
from ratchet.evaluation.measures.verdicts import APART, Verdicts, label_scores, uncertainty
from ratchet.evaluation.results import Arm, Results
from ratchet.evaluation.tables.suite import label, percent

WIDTH = 160
PADDING = (0, 1, 0, 0)
CONFUSION = """\
rows: gold labels; columns: verdicts, in questions (several samples of a question share its weight); precision, recall
and F1 in percent, strict: no verdict counts as a wrong one of every other label; -: nothing to divide by"""


def print_verdicts(suite: Sequence[Results], out: TextIO | None = None) -> None:
    """Print each arm's confusion on every labelled question set, then its uncertain verdicts."""
    console = wide_console(WIDTH, out)
    if not any(arm.verdicts for results in suite for arm in results.arms):
        titles = ", ".join(results.title or results.split for results in suite)
        raise UserError(f"no verdicts to count: the questions of {titles} have no label")
    for results in suite:
        known = [(arm, arm.verdicts) for arm in results.arms if arm.verdicts is not None]
        for arm, verdicts in known:
            print_table(_confusion_table(results, arm, verdicts), out)
        if known:
            console.print(CONFUSION)
        if (uncertain := _uncertain_table(results)).rows:
            print_table(uncertain, out)


def _confusion_table(results: Results, arm: Arm, verdicts: Verdicts) -> Table:
    """Rows are gold labels, columns verdicts, in questions; then precision, recall and F1 of each label."""
    macro = percent(arm.measures.get("macro_f1"))
    title = f"{escape(results.title)}, {label(arm)}: accuracy {percent(arm.measures.get('accuracy'))}, macro-F1 {macro}"
    headings = (*map(escape, verdicts.labels), *APART, "questions", "precision", "recall", "F1")
    table = new_table(title, ("gold",), headings, padding=PADDING)
    for i, (name, questions, *scores) in enumerate(label_scores(verdicts)):
        counts = [f"{round(value, 2):g}" for value in verdicts.confusion[i]]
        counts[i] = f"[bold]{counts[i]}[/]"
        shares = ["-" if value is None else f"{100 * value:.1f}" for value in scores]
        table.add_row(escape(name), *counts, f"{round(questions, 2):g}", *shares)
    return table


def _uncertain_table(results: Results) -> Table:
    """Arms that gave uncertain verdicts."""
    table = new_table(
        f"{escape(results.title)}: uncertain verdicts, in percent",
        ("method",),
        ("uncertain", "decided", "accuracy decided"),
        "uncertain: UNCERTAIN, or a label of stance unknown; decided: another label; accuracy decided: one minus the "
        "risk at that coverage",
        PADDING,
    )
    for arm in results.arms:
        uncertain = arm.verdicts and uncertainty(arm.verdicts, results.seed)
        if uncertain:
            table.add_row(label(arm), *map(percent, (uncertain.share, uncertain.coverage, uncertain.accuracy)))
    return table
