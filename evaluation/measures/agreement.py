"""How well the runs of a judge agree, from the verdicts stored with every score.

Runs are compared for correctness by each nugget's verdict (-1 to 2, ordinal) where all runs judge the same nuggets;
for faithfulness and precision, and for correctness where every run has nuggets of its own, by each trajectory's mean
over its claims or nuggets (interval).
Krippendorff's alpha (Content Analysis, chapter 12; Computing Krippendorff's Alpha-Reliability, 2011): 1 is perfect
agreement, 0 what chance gives; he asks for 0.8, and 0.667 for tentative conclusions. A missing verdict is skipped and
counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, variance

from rich.table import Table

from ratchet.records import Score
from ratchet.tables import new_table

Runs = dict[int, float | None]
"""By run, its verdict on one unit; None where it is missing."""


@dataclass(frozen=True)
class Agreement:
    """How far the runs of a judge agree on one score."""

    name: str
    runs: int
    """The largest number of runs behind one score."""
    units: int
    """Nuggets, or trajectories, with readable verdicts of two runs or more."""
    nulls: int
    """Missing verdicts: unreadable ones, and those of runs that found no claims."""
    identical: float | None
    """Share of pairs of runs with the same verdict, over the pairs of all units."""
    alpha: float | None
    """None where all verdicts are equal, or no unit has two: agreement beyond chance is then undefined."""


def judge_agreement(scores: Iterable[Score]) -> dict[str, Agreement]:
    """Agreement by score name, of the judged scores among `scores`."""
    by_name: dict[str, list[Score]] = defaultdict(list)
    for score in scores:
        if any(verdict.get("part") in ("nugget", "claims") for verdict in score.verdicts):
            by_name[score.name].append(score)
    return {name: _agreement(name, named) for name, named in by_name.items()}


def _agreement(name: str, scores: Sequence[Score]) -> Agreement:
    means = {score.trajectory: _run_means(score) for score in scores}
    nuggets = name == "correctness" and not any(_has_nuggets_by_run(score) for score in scores)
    verdicts = [runs for score in scores for runs in _nugget_verdicts(score)] if nuggets else list(means.values())
    units = [known for runs in verdicts if len(known := _known(runs)) > 1]
    pairs = [first == second for unit in units for first, second in combinations(unit, 2)]
    return Agreement(
        name=name,
        runs=max(len(runs) for runs in means.values()),
        units=len(units),
        nulls=sum(value is None for runs in verdicts for value in runs.values()),
        identical=fmean(pairs) if pairs else None,
        alpha=krippendorff_alpha(units, ordinal=nuggets),
    )


def _known(runs: Runs) -> list[float]:
    return [value for value in runs.values() if value is not None]


def _has_nuggets_by_run(score: Score) -> bool:
    """Whether the numbers of its nuggets mean others in every run."""
    return any(verdict.get("part") == "nuggets" and "run" in verdict for verdict in score.verdicts)


def _nugget_verdicts(score: Score) -> list[Runs]:
    nuggets: dict[int, Runs] = defaultdict(dict)
    for verdict in score.verdicts:
        if verdict.get("part") == "nugget":
            nuggets[verdict["nugget"]][verdict["run"]] = verdict["score"]
    return list(nuggets.values())


def _run_means(score: Score) -> Runs:
    """What each run alone gives the trajectory, on the score's own scale from 0 to 1."""
    values: dict[int, list[float]] = {}
    for verdict in score.verdicts:
        part = verdict.get("part")
        if part == "claims":
            values.setdefault(verdict["run"], [])
        elif part == "support":
            values[verdict["run"]] = [(s + 1) / 2 for s in verdict["scores"] or () if s is not None]
        elif part == "nugget":
            known = values.setdefault(verdict["run"], [])
            known += [] if verdict["score"] is None else [(verdict["score"] + 1) / 3]
    return {run: fmean(of_run) if of_run else None for run, of_run in sorted(values.items())}


def krippendorff_alpha(units: Iterable[Sequence[float]], ordinal: bool) -> float | None:
    """1 - observed / expected disagreement, over the units with two values or more; None where all values are equal.

    Disagreement is the squared distance of two values: of the values themselves (interval), or of their mean ranks
    among all values (ordinal: what lies between two values, with half of each, is the distance of their mean ranks).
    The mean squared distance of the pairs among some values is twice their variance, so no pair is formed.
    """
    paired = [unit for unit in units if len(unit) > 1]
    values = [value for unit in paired for value in unit]
    if ordinal:
        from scipy.stats import rankdata  # late: half a second that other commands need not wait

        values = rankdata(values).tolist()
    if len(set(values)) < 2:
        return None
    observed, at = 0.0, 0
    for unit in paired:
        observed += len(unit) * variance(values[at : at + len(unit)])
        at += len(unit)
    return 1 - observed / len(values) / variance(values)


def agreement_table(scores: Iterable[Score]) -> Table:
    """The judge's agreement with itself, one row per score name."""
    table = new_table(
        "Agreement of the judge with itself, run against run",
        ("score",),
        ("runs", "units", "missing", "identical", "alpha"),
        "alpha: Krippendorff's",
    )
    for agreement in judge_agreement(scores).values():
        cells = ["-" if number is None else f"{number:.3f}" for number in (agreement.identical, agreement.alpha)]
        table.add_row(agreement.name, str(agreement.runs), str(agreement.units), str(agreement.nulls), *cells)
    return table
