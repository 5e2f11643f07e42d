"""The table of a comparison: every arm of a task against `sft` and against `random`, form and substance apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Literal

from benchmarks.learning.cell import CellResult
from benchmarks.learning.tasks import BASE, RANDOM, SFT
from evaluation.formats import format_difference, format_estimate, format_number, format_p_value
from evaluation.measures.estimates import Difference, Estimate
from evaluation.measures.statistics import bootstrap_interval, holm, paired_difference
from ratchet.errors import UserError
from ratchet.tables import new_table, print_table

Part = Literal["values", "form", "answered", "enforced"]
PARTS: dict[Part, str] = {"values": "score", "form": "form", "answered": "substance", "enforced": "form enforced"}
DIGITS = "f1"
"""The measure whose digits differences have."""
CAPTION = """\
score: the mean over questions and seeds \\[95% bootstrap interval over questions]; a missing answer is wrong. form: the
share of trajectories that finished with an answer. substance: the score of those. form enforced: the score of those
whose form constrained decoding enforced, where it was measured. Below an arm, its differences from others: the mean
over the seeds that both have (in substance, over the questions that both answered), and the p value of the paired
sign-flip test with Holm's correction over this table. An interval does not hold the spread between training seeds: see
the score by seed."""
Arms = Mapping[str, Sequence[CellResult]]


def print_comparison(results: Iterable[CellResult]) -> None:
    """Print a table for each task."""
    tasks: dict[str, dict[str, list[CellResult]]] = {}
    for one in results:
        tasks.setdefault(one.task, {}).setdefault(one.arm, []).append(one)
    for task, arms in tasks.items():
        _print_task(task, arms)


def _print_task(task: str, arms: Arms) -> None:
    every = [one for found in arms.values() for one in found]
    first = every[0]
    if len({one.questions for one in every}) > 1:
        raise UserError(f"task {task}: its cells were asked different questions; start again in another --out")
    kinds = sorted({kind for kind in first.kinds.values() if kind})
    kinds = kinds if len(kinds) > 1 else []
    seeds = ", ".join(map(str, sorted({one.seed for one in every if one.arm != BASE})))
    title = f"{task}: {len(first.values)} questions, {first.primary}, seeds {seeds}"
    if first.floor is not None:
        title += f"; chance {first.floor.chance:.3f}, always {first.floor.commonest} {first.floor.accuracy:.3f}"
    parts = parts_of(every)
    headings = [heading for part in parts for heading in (PARTS[part], "p")]
    table = new_table(title, ["arm"], [*headings, *kinds, "score by seed", "rows", "step", "s"], CAPTION)
    compared = _corrected(arms)
    for arm, found in arms.items():
        ordered = sorted(found, key=lambda one: one.seed)
        training = [one.training for one in ordered if one.training]
        table.add_row(
            arm,
            *(cell for part in parts for cell in (format_estimate(estimate(found, part), DIGITS), "")),
            *(format_number(fmean(_of_kind(one, kind) for one in found), 2) for kind in kinds),
            " ".join(format_number(fmean(one.values.values()), 2) for one in ordered),
            " ".join(str(facts["rows"]["train"]) for facts in training),
            " ".join(str(facts["step"]) for facts in training),
            format_number(fmean(one.seconds for one in found), 0),
        )
        for reference in _references(arm, arms):
            differences = [compared[arm, reference, part] for part in parts]
            cells = [cell for d in differences for cell in (format_difference(d, DIGITS), format_p_value(d))]
            table.add_row(f"  - {reference}", *cells, *("" for _ in kinds), "", "", "", "")
    print_table(table)
    commits = ", ".join(sorted({one.code[:12] for one in every}))
    dates = sorted({one.finished for one in every})
    print(f"commit {commits}; {dates[0]} to {dates[-1]}; {first.machine}\n")


def parts_of(results: Iterable[CellResult]) -> list[Part]:
    """The parts of a score that were measured."""
    enforced = any(one.enforced for one in results)
    return [part for part in PARTS if enforced or part != "enforced"]


def _references(arm: str, arms: Arms) -> list[str]:
    """What the arm is compared with; the references are compared once, sft with random."""
    others = {BASE: (), RANDOM: (), SFT: (RANDOM,)}.get(arm, (SFT, RANDOM))
    return [one for one in others if one in arms]


def _corrected(arms: Arms) -> dict[tuple[str, str, Part], Difference]:
    """The differences of a table, by arm, reference and part, with Holm's p values."""
    found = {
        (arm, reference, part): difference(arms[reference], arms[arm], part)
        for arm in arms
        for reference in _references(arm, arms)
        for part in parts_of([one for results in arms.values() for one in results])
    }
    tested = {key: one.p for key, one in found.items() if one.p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {key: one.model_copy(update={"p": adjusted.get(key)}) for key, one in found.items()}


def difference(reference: Sequence[CellResult], arm: Sequence[CellResult], part: Part) -> Difference:
    """The arm less the reference, paired by question and seed; a question's value is the mean over the seeds that both
    arms have, and for `answered` over those of them in which both answered it."""
    before, after = _paired(reference, arm, part)
    return paired_difference(before, after, seed=0) if before else Difference(n=0)


def _paired(reference: Sequence[CellResult], arm: Sequence[CellResult], part: Part) -> tuple[list[float], list[float]]:
    """(the reference's values, the arm's), one pair a question."""
    theirs = {one.seed: getattr(one, part) for one in reference}
    pairs: dict[str, list[tuple[float, float]]] = {}
    for one in arm:
        for question, value in getattr(one, part).items():
            if question in theirs.get(one.seed, ()):
                pairs.setdefault(question, []).append((theirs[one.seed][question], value))
    before = [fmean(pair[0] for pair in found) for found in pairs.values()]
    return before, [fmean(pair[1] for pair in found) for found in pairs.values()]


def estimate(arm: Sequence[CellResult], part: Part) -> Estimate:
    """The mean over questions of the mean over seeds, with its interval; for `answered`, over what was answered."""
    before, _ = _paired(arm, arm, part)
    return bootstrap_interval(before, seed=0)


def _of_kind(one: CellResult, kind: str) -> float:
    return fmean(value for question, value in one.values.items() if one.kinds[question] == kind)
