"""The results of all finished cells, built without a model: numbers, differences, choices and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from evaluation.arms import ArmStatus
from evaluation.measures.estimates import Difference
from evaluation.measures.measures import Values, values_by_question, values_of_samples
from evaluation.measures.statistics import holm, stratified_interval
from evaluation.results import Arm, BaselineComparison, compare_with_best, make_arm, measure_difference
from evaluation.sweep.cells import Cell, Stage, Sweep, SweepQuestionSet
from evaluation.sweep.choice import choose, evaluations_of, read_test_record
from evaluation.sweep.records import (
    Average,
    CellResult,
    CheckpointFacts,
    Choice,
    Curve,
    Point,
    SetFacts,
    SweepResults,
    TestRecord,
)
from ratchet.config import SystemConfig
from ratchet.config.sweep import Price
from ratchet.plugins import short_name
from ratchet.progress import Progress
from ratchet.records import Trajectory
from ratchet.text import NORMALISATIONS

MILLION = 1e6


@dataclass(frozen=True)
class _Merged:
    """A finished cell."""

    cell: Cell
    arm: Arm
    price: float | None


def merge(sweep: Sweep) -> SweepResults:
    """Build the sweep's results from its finished cells; the others are named as missing."""
    record = read_test_record(sweep.folder)
    cells = [*sweep.cells(), *tested_cells(sweep, record)]
    found: dict[str, _Merged] = {}
    missing: list[str] = []
    with Progress("merge", len(cells)) as progress:
        for cell in cells:
            status = sweep.status(cell)
            if status.state == "done":
                found[cell.name] = _merged(sweep, cell, status)
            else:
                missing.append(f"{cell.name}: {status.note or 'not started'}")
            progress.advance()
    choices, undecided = _choices(
        sweep, {name: _values(one.arm.values, one.cell.asked.measure) for name, one in found.items()}
    )
    results = [*_compared(sweep, record, found, "dev"), *_compared(sweep, record, found, "test")]
    evaluation = sweep.arms.evaluation
    return SweepResults(
        run=sweep.arms.run.name,
        samples=evaluation.samples,
        seed=sweep.arms.seed,
        resamples=evaluation.resamples,
        scores=evaluation.scores,
        checkpoints=tuple(
            CheckpointFacts(
                name=one.name,
                policy=one.policy,
                adapter=None if one.adapter is None else str(one.adapter),
                run=one.run,
                round=one.round,
                step=one.step,
            )
            for one in sweep.checkpoints
        ),
        systems={name: short_name(system.name) for name, system in sweep.systems.items()},
        sets=tuple(_set_facts(sweep, record, asked) for asked in (*sweep.dev, *sweep.test)),
        cells=tuple(results),
        missing=tuple(missing),
        averages=tuple(_averages(sweep, found)),
        choices=tuple(choices),
        undecided=tuple(undecided),
        notes=tuple(_notes(sweep, record, choices, found)),
        curves=tuple(_curves(sweep, found)),
    )


def choices_of(sweep: Sweep) -> tuple[list[Choice], list[str]]:
    """The choices on dev, and for each system without one the reason."""
    known: dict[str, dict[str, float]] = {}
    names, weights = sweep.arms.evaluation.scores, sweep.arms.rewards.weights
    normalise = NORMALISATIONS[sweep.arms.rewards.normalisation]
    for cell in sweep.cells():
        status = sweep.status(cell)
        if status.state == "done":
            samples = values_of_samples(
                cell.asked.questions, status.trajectories, status.scores, names, weights, normalise
            )
            values, _ = values_by_question(samples)
            known[cell.name] = _values(values, cell.asked.measure)
    return _choices(sweep, known)


def tested_cells(sweep: Sweep, record: TestRecord) -> list[Cell]:
    """The cells of the test sets: those measured last, and their bases."""
    cells: dict[str, Cell] = {}
    by_policy = {one.policy: one.name for one in sweep.checkpoints}
    for name in sweep.systems:
        for asked in sweep.sets_of(name, sweep.test):
            looks = evaluations_of(record, asked, name)
            if not looks or looks[-1].policy not in by_policy:
                continue
            cell = sweep.cell(by_policy[looks[-1].policy], name, asked)
            for one in (sweep.base_of(cell), cell):
                cells.setdefault(one.name, one)
    return list(cells.values())


def _merged(sweep: Sweep, cell: Cell, status: ArmStatus) -> _Merged:
    evaluation = sweep.arms.evaluation
    arm = make_arm(
        cell.name,
        short_name(cell.system.name),
        cell.checkpoint.policy,
        cell.asked.questions,
        status.trajectories,
        status.scores,
        evaluation.scores,
        sweep.arms.rewards.weights,
        evaluation.resamples,
        sweep.arms.seed,
        sweep.arms.rewards.select.keep_status,
        NORMALISATIONS[sweep.arms.rewards.normalisation],
    )
    return _Merged(cell, arm, _price(sweep, cell, status.trajectories))


def _price(sweep: Sweep, cell: Cell, trajectories: Sequence[Trajectory]) -> float | None:
    """The mean price of a question, which is that of all its samples."""
    prices = sweep.settings.prices
    if not prices or not trajectories:
        return None
    every = [trajectory_price(trajectory, cell.system, prices) for trajectory in trajectories]
    return fmean(every) * sweep.arms.evaluation.samples


def trajectory_price(trajectory: Trajectory, system: SystemConfig, prices: dict[str, Price]) -> float:
    """The price of the trajectory's calls to models that have one."""
    total = 0.0
    for call in trajectory.model_calls:
        price = prices.get(system.role(call.role).model)
        if price is not None:
            cached = price.prompt if price.cached is None else price.cached
            total += (call.prompt_tokens - call.cached_tokens) * price.prompt
            total += call.cached_tokens * cached + call.new_tokens * price.new
    return total / MILLION


def _compared(sweep: Sweep, record: TestRecord, found: dict[str, _Merged], stage: Stage) -> list[CellResult]:
    """The stage's cells, each against its base, with Holm's correction over all of the stage's differences."""
    results = []
    resampling = (sweep.arms.evaluation.resamples, sweep.arms.seed)
    for merged in found.values():
        cell = merged.cell
        if cell.asked.stage != stage:
            continue
        base = found.get(sweep.base_of(cell).name)
        looks = evaluations_of(record, cell.asked, cell.system_name) if stage == "test" else []
        difference: Difference | None = None
        if base is not None and base is not merged:
            ids = [question.id for question in cell.asked.questions]
            difference = measure_difference(base.arm, merged.arm, cell.asked.measure, ids, *resampling)
        tested = any(look.policy == cell.checkpoint.policy for look in looks[-1:])
        results.append(
            CellResult(
                checkpoint=cell.checkpoint.name,
                system=cell.system_name,
                split=cell.asked.name,
                stage=stage,
                tested=tested,
                arm=merged.arm,
                price=merged.price,
                base=None if difference is None or base is None else base.cell.name,
                difference=difference,
                best_untrained=_against_untrained(sweep, merged, base, found) if tested else None,
            )
        )
    raw = [one.difference.p for one in results if one.difference is not None and one.difference.p is not None]
    adjusted = iter(holm(raw))
    return [
        one.model_copy(update={"p_holm": next(adjusted)})
        if one.difference is not None and one.difference.p is not None
        else one
        for one in results
    ]


def _against_untrained(
    sweep: Sweep, merged: _Merged, base: _Merged | None, found: dict[str, _Merged]
) -> BaselineComparison | None:
    cell = merged.cell
    untrained = [
        one for one in found.values() if one.cell.asked.name == cell.asked.name and one.cell.checkpoint.adapter is None
    ]
    if cell.checkpoint.adapter is None or untrained == [base]:
        return None
    resamples, seed = sweep.arms.evaluation.resamples, sweep.arms.seed
    return compare_with_best(merged.arm, [one.arm for one in untrained], cell.asked.measure, resamples, seed)


def _values(by_id: Mapping[str, Values], measure: str) -> dict[str, float]:
    return {i: value for i, values in by_id.items() if (value := values.get(measure)) is not None}


def _choices(sweep: Sweep, found: Mapping[str, dict[str, float]]) -> tuple[list[Choice], list[str]]:
    """The choices and the reasons for none; `found` has by cell its measure by question."""
    choices, undecided = [], []
    for name in sweep.systems:
        sets = sweep.sets_of(name, sweep.dev)
        wanted = [(one, [sweep.cell(one.name, name, asked) for asked in sets]) for one in sweep.checkpoints]
        lacking = [cell.name for _, cells in wanted for cell in cells if cell.name not in found]
        if lacking:
            undecided.append(f"{name}: finish these cells before choosing a checkpoint: {', '.join(lacking)}")
            continue
        columns: dict[str, list[list[float]]] = {one.name: [] for one in sweep.checkpoints}
        for at, asked in enumerate(sets):
            known = {one.name: found[cells[at].name] for one, cells in wanted}
            # Only questions count that every checkpoint has: other questions would give means that cannot be compared.
            both = [q.id for q in asked.questions if all(q.id in values for values in known.values())]
            for checkpoint, values in known.items():
                columns[checkpoint].append([values[i] for i in both])
        if not all(columns[sweep.checkpoints[0].name]):
            undecided.append(f"{name}: on some dev set no question has a value under every checkpoint")
            continue
        policies = {one.name: one.policy for one in sweep.checkpoints}
        evaluation = sweep.arms.evaluation
        choices.append(choose(name, columns, policies, sets[0].measure, evaluation.resamples, sweep.arms.seed))
    return choices, undecided


def _averages(sweep: Sweep, found: dict[str, _Merged]) -> list[Average]:
    """The means over the sets of a stage, where it has several and all are finished."""
    averages = []
    for stage, sets in (("dev", sweep.dev), ("test", sweep.test)):
        for checkpoint in sweep.checkpoints:
            for name in sweep.systems:
                wanted = sweep.sets_of(name, sets)
                cells = [found.get(sweep.cell(checkpoint.name, name, asked).name) for asked in wanted]
                groups = [
                    list(_values(one.arm.values, one.cell.asked.measure).values()) for one in cells if one is not None
                ]
                if len(wanted) < 2 or len(groups) < len(wanted) or not all(groups):
                    continue
                estimate = stratified_interval(groups, sweep.arms.evaluation.resamples, sweep.arms.seed)
                averages.append(Average(checkpoint=checkpoint.name, system=name, stage=stage, estimate=estimate))
    return averages


def _set_facts(sweep: Sweep, record: TestRecord, asked: SweepQuestionSet) -> SetFacts:
    looks = max((len(evaluations_of(record, asked, name)) for name in sweep.systems), default=0)
    return SetFacts(
        name=asked.name,
        title=asked.title,
        stage=asked.stage,
        questions=len(asked.questions),
        digest=asked.digest,
        measure=asked.measure,
        looks=looks if asked.stage == "test" else 0,
    )


def _notes(sweep: Sweep, record: TestRecord, choices: Sequence[Choice], found: dict[str, _Merged]) -> list[str]:
    notes = []
    for asked in sweep.test:
        facts = _set_facts(sweep, record, asked)
        if facts.looks > 1:
            notes.append(
                f"The test set {asked.name} was measured {facts.looks} times, with another checkpoint each, so its "
                "numbers are optimistically biased."
            )
    for choice in choices:
        for asked in sweep.sets_of(choice.system, sweep.test):
            looks = evaluations_of(record, asked, choice.system)
            if looks and looks[-1].policy != choice.policy:
                notes.append(
                    f"{asked.name} was tested with {looks[-1].checkpoint} for {choice.system}; dev now "
                    f"chooses {choice.checkpoint}."
                )
    policies = {one.policy for one in sweep.checkpoints}
    if gone := sorted({look.checkpoint for look in record.looks if look.policy not in policies}):
        notes.append(f"Tested before, but no longer a checkpoint of this sweep: {', '.join(gone)}.")
    if failed := {name: n for name, one in found.items() if (n := one.arm.statuses.get("failed", 0))}:
        cells = ", ".join(f"{name} {n}" for name, n in failed.items())
        notes.append(
            f"Trajectories that failed by a fault (they count as wrong; run the sweep again to retry): {cells}."
        )
    return notes


def _curves(sweep: Sweep, found: dict[str, _Merged]) -> list[Curve]:
    curves = []
    for run in dict.fromkeys(one.run for one in sweep.checkpoints if one.run):
        for name in sweep.systems:
            for asked in sweep.sets_of(name, sweep.dev):
                measure, points = asked.measure, list[Point]()
                for one in sweep.checkpoints:
                    merged = found.get(sweep.cell(one.name, name, asked).name)
                    if (one.run == run or one.adapter is None) and merged is not None:
                        at = {"round": one.round, "step": one.step, "place": one.place}
                        points.append(Point(checkpoint=one.name, estimate=merged.arm.measures[measure], **at))
                if len(points) > 1:
                    points.sort(key=lambda point: point.place)
                    curves.append(Curve(run=run, system=name, split=asked.name, measure=measure, points=tuple(points)))
    return curves
