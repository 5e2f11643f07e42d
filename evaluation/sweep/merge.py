"""The results of all finished cells, built without a model: numbers, differences and choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ratchet.core.plugins import short_name
from ratchet.core.progress import Progress
from ratchet.evaluation.comparisons import compare_with_best, make_arm, measure_difference
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.measures.statistics import RESAMPLES, holm
from ratchet.evaluation.results import Arm, BaselineComparison
from ratchet.evaluation.sweep.cells import Cell, Sweep, SweepQuestionSet
from ratchet.evaluation.sweep.choice import choose, evaluations_of, read_test_record
from ratchet.evaluation.sweep.records import CellResult, Choice, SetFacts, SweepResults, TestRecord


def merge(sweep: Sweep) -> SweepResults:
    """Build the sweep's results from its finished cells; the others are named as missing."""
    record = read_test_record(sweep.folder)
    stages = [sweep.cells(), tested_cells(sweep, record)]
    arms: dict[str, Arm] = {}
    missing: list[str] = []
    with Progress("merge", sum(map(len, stages))) as progress:
        for cell in (*stages[0], *stages[1]):
            status = sweep.status(cell)
            if status.state == "done":
                of_arm = (cell.name, short_name(cell.arm.system.name), cell.checkpoint.policy, cell.asked.questions)
                arms[cell.name] = make_arm(sweep.config, *of_arm, status.trajectories, status.scores)
            else:
                missing.append(f"{cell.name}: {status.note or 'not started'}")
            progress.advance()
    choices, undecided = _choices(sweep, arms)
    return SweepResults(
        run=sweep.config.folder.name,
        samples=sweep.config.evaluation.samples,
        seed=sweep.config.seed,
        resamples=RESAMPLES,
        checkpoints=tuple(sweep.checkpoints),
        systems={name: short_name(system.name) for name, system in sweep.systems.items()},
        sets=tuple(_set_facts(sweep, record, asked) for asked in (*sweep.dev, *sweep.test)),
        cells=tuple(result for cells in stages for result in _compared(sweep, record, cells, arms)),
        missing=tuple(missing),
        choices=tuple(choices),
        undecided=tuple(undecided),
        notes=tuple(_notes(sweep, record, choices, arms)),
    )


def tested_cells(sweep: Sweep, record: TestRecord) -> list[Cell]:
    """The cells of the test sets: those measured last, and their bases."""
    cells: dict[str, Cell] = {}
    by_policy = {checkpoint.policy: checkpoint.name for checkpoint in sweep.checkpoints}
    for name in sweep.systems:
        for asked in sweep.test:
            looks = evaluations_of(record, asked, name)
            if looks and looks[-1].policy in by_policy:
                tested = sweep.cell(by_policy[looks[-1].policy], name, asked)
                cells |= {cell.name: cell for cell in (sweep.base_of(tested), tested)}
    return list(cells.values())


def _compared(sweep: Sweep, record: TestRecord, cells: Sequence[Cell], arms: Mapping[str, Arm]) -> list[CellResult]:
    """A stage's finished cells, each against its base, with Holm's correction over all of the stage's differences."""
    finished = [cell for cell in cells if cell.name in arms]
    differences: dict[str, Difference] = {}
    for cell in finished:
        base = sweep.base_of(cell).name
        if base in arms and base != cell.name:
            pair = (arms[base], arms[cell.name], cell.asked.measure)
            differences[cell.name] = measure_difference(*pair, sweep.config.seed)
    tests = {name: difference.p for name, difference in differences.items() if difference.p is not None}
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    results = []
    for cell in finished:
        looks = evaluations_of(record, cell.asked, cell.system) if cell.asked.stage == "test" else []
        tested = any(look.policy == cell.checkpoint.policy for look in looks[-1:])
        results.append(
            CellResult(
                checkpoint=cell.checkpoint.name,
                system=cell.system,
                split=cell.asked.name,
                stage=cell.asked.stage,
                tested=tested,
                arm=arms[cell.name],
                difference=differences.get(cell.name),
                p_holm=corrected.get(cell.name),
                best_untrained=_against_untrained(sweep, cell, finished, arms) if tested else None,
            )
        )
    return results


def _against_untrained(
    sweep: Sweep, cell: Cell, finished: Sequence[Cell], arms: Mapping[str, Arm]
) -> BaselineComparison | None:
    """A choice against the best system on the base model; None where its own is the only one."""
    untrained = [
        other.name for other in finished if other.asked.name == cell.asked.name and other.checkpoint.adapter is None
    ]
    if cell.checkpoint.adapter is None or untrained == [sweep.base_of(cell).name]:
        return None
    others = [arms[name] for name in untrained]
    return compare_with_best(arms[cell.name], others, cell.asked.measure, sweep.config.seed)


def _choices(sweep: Sweep, arms: Mapping[str, Arm]) -> tuple[list[Choice], list[str]]:
    """The choices on dev, and for each system without one the reason."""
    choices, undecided = [], []
    policies = {checkpoint.name: checkpoint.policy for checkpoint in sweep.checkpoints}
    for system in sweep.systems:
        names = {name: [sweep.cell(name, system, asked).name for asked in sweep.dev] for name in policies}
        if lacking := [cell for cells in names.values() for cell in cells if cell not in arms]:
            undecided.append(f"{system}: finish these cells before choosing a checkpoint: {', '.join(lacking)}")
            continue
        columns: dict[str, list[list[float]]] = {name: [] for name in policies}
        for at, asked in enumerate(sweep.dev):
            every = {name: arms[cells[at]].by_question(asked.measure) for name, cells in names.items()}
            known = {name: {i: v for i, v in own.items() if v is not None} for name, own in every.items()}
            # Only questions count that every checkpoint has: other questions would give means that cannot be compared.
            shared = [q.id for q in asked.questions if all(q.id in values for values in known.values())]
            for name, values in known.items():
                columns[name].append([values[i] for i in shared])
        if not all(next(iter(columns.values()))):
            undecided.append(f"{system}: on some dev set no question has a value under every checkpoint")
            continue
        choices.append(choose(system, columns, policies, sweep.dev[0].measure))
    return choices, undecided


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


def _notes(sweep: Sweep, record: TestRecord, choices: Sequence[Choice], arms: Mapping[str, Arm]) -> list[str]:
    notes = []
    for asked in sweep.test:
        if (looks := _set_facts(sweep, record, asked).looks) > 1:
            notes.append(
                f"The test set {asked.name} was measured {looks} times, with another checkpoint each, so its numbers "
                "are optimistically biased."
            )
    for choice in choices:
        for asked in sweep.test:
            evaluations = evaluations_of(record, asked, choice.system)
            if evaluations and evaluations[-1].policy != choice.policy:
                notes.append(
                    f"{asked.name} was tested with {evaluations[-1].checkpoint} for {choice.system}; dev now "
                    f"chooses {choice.checkpoint}."
                )
    policies = {checkpoint.policy for checkpoint in sweep.checkpoints}
    if gone := sorted({look.checkpoint for look in record.looks if look.policy not in policies}):
        notes.append(f"Tested before, but no longer a checkpoint of this sweep: {', '.join(gone)}.")
    if failed := [f"{name} {count}" for name, arm in arms.items() if (count := arm.statuses.get("failed", 0))]:
        notes.append(
            "Trajectories that failed by a fault (they count as wrong; run the sweep again to retry): "
            f"{', '.join(failed)}."
        )
    return notes
