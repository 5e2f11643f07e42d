"""The table of an ablation: arms, each a config with some of its keys changed, run with several seeds.

A question's value is its mean over the seeds. Intervals and tests are over questions, as in every table; the means by
seed stand beside them, since few seeds allow no interval of their own. An arm is compared with the first one, paired by
question and seed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TextIO

from rich.text import Text

from ratchet.core.escape import latex_text
from ratchet.core.tables import new_table, print_table
from ratchet.evaluation.formats import coloured, format_estimate, format_number, format_p
from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.measures import measure_of
from ratchet.evaluation.measures.statistics import bootstrap_interval, holm_by, paired_difference
from ratchet.evaluation.results import BASE, TRAINED, Results

CAPTION = """\
base: the untrained model; kept: trajectories that were trained on, by seed;
mean: over questions and seeds, with its 95% bootstrap interval over questions;
difference: from {first}, paired by question and seed; p: paired sign-flip test,
Holm's correction over the {tests} of this table. Of several arms, the best is
optimistically biased on the questions that it was chosen by.
{commits}"""


@dataclass(frozen=True)
class RunResults:
    """The results of one run: an arm with a seed."""

    results: Sequence[Results]
    """By question set. Without an adapter in them, the run stands by the base model."""
    kept: int
    """The trajectories that were trained on."""
    commits: frozenset[str]
    """The versions of the code that ran its stages."""


@dataclass(frozen=True)
class Row:
    """An arm on one question set."""

    arm: str
    base: float | None
    seeds: tuple[float | None, ...]
    """The mean by seed; None where the run is missing, as in `kept`."""
    kept: tuple[int | None, ...]
    mean: Estimate
    difference: Difference
    """From the first arm, over the seeds that both have."""
    p: float | None = None
    """The p value with Holm's correction over all rows of the ablation."""


@dataclass(frozen=True)
class AblatedSet:
    """The rows of one question set."""

    split: str
    title: str
    measure: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Ablation:
    """The table of an ablation."""

    arms: Mapping[str, Sequence[str]]
    """By name, the `--set` of each arm."""
    seeds: tuple[int, ...]
    sets: tuple[AblatedSet, ...]
    commits: tuple[str, ...]

    @property
    def of_code(self) -> str:
        """The code that made it, in words."""
        names = ", ".join(self.commits) or "unknown"
        return f"{'Commits (not all runs have the same)' if len(self.commits) > 1 else 'Commit'}: {names}"


def compare_arms(
    arms: Mapping[str, Sequence[str]], seeds: Sequence[int], runs: Mapping[tuple[str, int], RunResults], seed: int
) -> Ablation:
    """The table of the finished runs, by arm and seed. `seed`: of the resamples."""
    splits = dict.fromkeys(results.split for run in runs.values() for results in run.results)
    sets = [_compared(split, list(arms), seeds, runs, seed) for split in splits]
    p = holm_by({(one.split, row.arm): row.difference for one in sets for row in one.rows})
    return Ablation(
        arms=arms,
        seeds=tuple(seeds),
        sets=tuple(
            replace(one, rows=tuple(replace(row, p=p.get((one.split, row.arm))) for row in one.rows)) for one in sets
        ),
        commits=tuple(sorted({commit for run in runs.values() for commit in run.commits})),
    )


def _compared(
    split: str, arms: Sequence[str], seeds: Sequence[int], runs: Mapping[tuple[str, int], RunResults], seed: int
) -> AblatedSet:
    results = {at: one for at, run in runs.items() for one in run.results if one.split == split}
    first = next(iter(results.values()))
    values = {at: _values(one, (TRAINED, BASE), first.primary) for at, one in results.items()}
    base = {at: _values(one, (BASE,), first.primary) for at, one in results.items()}

    def row(arm: str) -> Row:
        own = [values.get((arm, number), {}) for number in seeds]
        compared = [values.get((arms[0], number), {}) for number in seeds if arm != arms[0]]
        return Row(
            arm=arm,
            base=_mean(_over_seeds(base.get((arm, number), {}) for number in seeds).values()),
            seeds=tuple(_mean(one.values()) for one in own),
            kept=tuple(runs[arm, number].kept if (arm, number) in runs else None for number in seeds),
            mean=bootstrap_interval(list(_over_seeds(own).values()), seed),
            difference=_difference(compared, own, seed),
        )

    return AblatedSet(split, first.title or split, first.primary, tuple(map(row, arms)))


def _values(results: Results, names: Sequence[str], measure: str) -> dict[str, float]:
    """By question, the values of the first of these arms that there is: without an adapter, those of the base model."""
    return next(arm for name in names if (arm := results.arm(name)) is not None).known(measure)


def _over_seeds(by_seed: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """By question, the mean over the seeds that have a value."""
    values: dict[str, list[float]] = {}
    for of_seed in by_seed:
        for question, value in of_seed.items():
            values.setdefault(question, []).append(value)
    return {question: fmean(of_question) for question, of_question in values.items()}


def _difference(first: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]], seed: int) -> Difference:
    """The difference of two arms, whose values are given by seed, over what both have."""
    pairs = [{i: (x, two[i]) for i, x in one.items() if i in two} for one, two in zip(first, other, strict=False)]
    before, after = (
        _over_seeds({i: pair[side] for i, pair in of_seed.items()} for of_seed in pairs) for side in (0, 1)
    )
    return paired_difference(list(before.values()), list(after.values()), seed)


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None


# The table as text, CSV and LaTeX


def print_ablation(table: Ablation, out: TextIO | None = None) -> None:
    """Print the table, a section for each question set."""
    tests = sum(row.p is not None for one in table.sets for row in one.rows)
    counted = f"{tests} difference{'' if tests == 1 else 's'}"
    caption = CAPTION.format(first=next(iter(table.arms)), tests=counted, commits=table.of_code)
    shown = new_table("Ablation", ("arm",), _headings(table)[1:], caption)
    for one in table.sets:
        shown.add_section()
        shown.add_row(Text(f"{one.title}: {measure_of(one.measure).title}", "bold"))
        for row in one.rows:
            *cells, difference, p = _cells(row, one.measure)
            shown.add_row(*cells, coloured(difference, row.difference.model_copy(update={"p": row.p}), one.measure), p)
    print_table(shown, out)


def _headings(table: Ablation) -> list[str]:
    return ["arm", "base", *(f"seed {seed}" for seed in table.seeds), "kept", "mean", "difference", "p"]


def _cells(row: Row, measure: str) -> list[str]:
    digits = measure_of(measure).digits
    return [
        row.arm,
        format_number(row.base, digits),
        *(format_number(mean, digits) for mean in row.seeds),
        " ".join("-" if kept is None else str(kept) for kept in row.kept),
        format_estimate(row.mean, measure),
        format_estimate(row.difference, measure) if row.difference.mean is not None else "",
        "" if row.p is None else format_p(row.p),
    ]


def ablation_csv(table: Ablation) -> str:
    """The table as CSV, with every number in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    by_seed = [f"{name}_seed_{seed}" for name in ("mean", "kept") for seed in table.seeds]
    of_mean = ("mean", "mean_low", "mean_high", "questions")
    of_difference = ("difference", "difference_low", "difference_high", "p", "p_holm")
    writer.writerow(["question_set", "measure", "arm", "set", "base", *by_seed, *of_mean, *of_difference, "commits"])
    for one in table.sets:
        for row in one.rows:
            mean, gain = row.mean, row.difference
            numbers = [mean.mean, mean.low, mean.high, mean.n, gain.mean, gain.low, gain.high, gain.p, row.p]
            names = [one.split, one.measure, row.arm, " ".join(table.arms[row.arm])]
            writer.writerow([*names, row.base, *row.seeds, *row.kept, *numbers, " ".join(table.commits)])
    return text.getvalue()


def ablation_latex(table: Ablation) -> str:
    """The table as LaTeX, for the package booktabs."""
    headings = _headings(table)
    lines = [f"% {table.of_code}", f"\\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}", "\\toprule"]
    lines.append(_latex_row(headings))
    for one in table.sets:
        title = latex_text(f"{one.title}: {measure_of(one.measure).title}")
        lines += ["\\midrule", f"\\multicolumn{{{len(headings)}}}{{l}}{{{title}}} \\\\"]
        lines += [_latex_row(_cells(row, one.measure)) for row in one.rows]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _latex_row(cells: Iterable[str]) -> str:
    return f"{' & '.join(map(latex_text, cells))} \\\\"
