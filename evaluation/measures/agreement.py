"""How well the runs of a judge agree, from the verdicts stored with every score.

Two runs are compared by what each alone gives a trajectory: the mean over its claims or nuggets, from 0 to 1.
The intraclass correlation (Fisher, Statistical Methods for Research Workers, 1925, chapter 7) is Pearson's over all
ordered pairs of runs: 1 is perfect agreement, 0 what chance gives. A missing verdict is skipped and counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import permutations
from statistics import fmean

from rich.table import Table

from ratchet.core.selection import Score
from ratchet.core.tables import new_table


def run_means(score: Score) -> dict[int, float | None]:
    """What each run alone gives the trajectory, on the score's own scale from 0 to 1; None where it is missing."""
    values: dict[int, list[float]] = {}
    for verdict in score.verdicts:
        part = verdict.get("part")
        if part == "claims":
            values.setdefault(verdict["run"], [])
        elif part == "support":
            scores = verdict["scores"]
            known = [(s + 1) / 2 for s in scores or () if s is not None]
            # A run without claims gives 0 (rewards/claims.py).
            values[verdict["run"]] = [0.0] if scores == [] else known
        elif part == "nugget":
            known = values.setdefault(verdict["run"], [])
            known += [] if verdict["score"] is None else [(verdict["score"] + 1) / 3]
    return {run: fmean(of_run) if of_run else None for run, of_run in sorted(values.items())}


def agreement_table(scores: Iterable[Score]) -> Table:
    """The judge's agreement with itself, one row per score name that has verdicts of a judge."""
    from scipy.stats import pearsonr  # late: half a second that other commands need not wait

    by_name: dict[str, list[dict[int, float | None]]] = defaultdict(list)
    for score in scores:
        if runs := run_means(score):
            by_name[score.name].append(runs)
    table = new_table(
        "Agreement of the judge with itself, run against run",
        ("score",),
        ("runs", "trajectories", "missing", "identical", "correlation"),
        "identical: share of pairs of runs; correlation: intraclass",
    )
    for name, trajectories in by_name.items():
        known = [[value for value in runs.values() if value is not None] for runs in trajectories]
        pairs = [pair for values in known for pair in permutations(values, 2)]
        identical = correlation = "-"
        if pairs:
            identical = f"{fmean(first == second for first, second in pairs):.3f}"
        if len({first for first, _ in pairs}) > 1:
            correlation = f"{pearsonr(*zip(*pairs, strict=True)).statistic:.3f}"
        missing = sum(value is None for runs in trajectories for value in runs.values())
        counts = (max(map(len, trajectories)), sum(len(values) > 1 for values in known), missing)
        table.add_row(name, *map(str, counts), identical, correlation)
    return table
