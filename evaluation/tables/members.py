"""One adapter on the tasks of all members that it was trained for: a row per member and question set."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from rich.markup import escape
from rich.table import Table

from evaluation.formats import format_difference, format_number
from evaluation.measures.estimates import Difference
from evaluation.measures.measures import BY_NAME
from evaluation.measures.statistics import holm
from evaluation.results import TRAINED, Results, read_results
from evaluation.round_arms import results_path
from ratchet.config import Config, load_members
from ratchet.errors import UserError
from ratchet.runfolder import RoundFolder
from ratchet.tables import new_table, print_table

CAPTION = """\
mean over questions; difference with its 95% bootstrap interval, paired by question; p: paired sign-flip test, Holm's \
correction over all rows"""


def _members_table(config: Config, number: int) -> Table:
    """Raises UserError where the config has no members, or one was not evaluated yet."""
    if not config.members:
        raise UserError("members: this config has none; `python -m evaluation table` shows its own results")
    found = [(name, results) for name in config.members for results in _results(config, name, number)]
    differences = [_difference(results) for _, results in found]
    adjusted = iter(holm([d.p for d in differences if d.p is not None]))
    texts, numbers = ("member", "system", "questions", "measure"), ("n", "base", "adapter", "difference", "p")
    table = new_table(f"One adapter, {len(config.members)} systems", texts, numbers, CAPTION, (0, 1))
    for (name, results), gain in zip(found, differences, strict=True):
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
            "-" if p is None else "<.001" if p < 0.001 else f"{p:.3f}",
        )
    return table


def _results(config: Config, name: str, number: int) -> list[Results]:
    member = load_members(config)[name]
    folder = RoundFolder(Path(config.run) / name / f"round-{number}")
    found = []
    for split in member.evaluation.question_sets:
        results = read_results(results_path(folder, member.evaluation, split))
        if results is None or results.comparison(TRAINED) is None:
            raise UserError(
                f"{folder.path}: {name} was not evaluated with the shared adapter on {split!r} yet; "
                "`python selftrain.py` with this config does so"
            )
        found.append(results)
    return found


def _difference(results: Results) -> Difference:
    comparison = results.comparison(TRAINED)
    assert comparison is not None
    return comparison.measures.get(results.primary, Difference(n=0))


def print_members(config: Config, number: int, out: TextIO | None = None) -> None:
    """Print the table of all members for round `number`."""
    print_table(_members_table(config, number), out)
