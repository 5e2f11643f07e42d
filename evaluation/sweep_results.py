"""The results of a sweep: dev chooses a checkpoint, test measures it once, and one table shows all.

sweep/sweep.json    everything that the tables show, of the cells that are finished
sweep/test.json     which choices were measured on the test sets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from rich.table import Table
from rich.text import Text

from ratchet.core.errors import UserError
from ratchet.core.files import read_record, write_record
from ratchet.core.plugins import short_name
from ratchet.core.progress import Progress
from ratchet.core.records import Record
from ratchet.core.tables import NARROW, new_table, print_table, wide_console
from ratchet.evaluation.comparisons import choose, compare_with_best, make_arm, measure_difference
from ratchet.evaluation.formats import format_difference, format_mean, format_p, paired_count
from ratchet.evaluation.headline import baseline_sentence
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.measures.measures import measure_of
from ratchet.evaluation.measures.statistics import RESAMPLES, holm_by
from ratchet.evaluation.results import Arm, BaselineComparison
from ratchet.evaluation.sweep import Cell, Checkpoint, Sweep, SweepQuestionSet
from ratchet.evaluation.tables.suite import mean_cost


class SetFacts(Record):
    """A question set of the sweep."""

    name: str
    title: str
    stage: str
    """'dev', which chooses, 'test', which measures the choices, or 'grid', which does neither."""
    questions: int
    digest: str
    measure: str
    looks: int = 0
    """The number of choices measured on a test set. With more than one its numbers are optimistically biased."""


class CellResult(Record):
    """One checkpoint with one system on one question set."""

    checkpoint: str
    system: str
    split: str
    stage: str
    tested: bool = False
    """True where a test cell is a choice, and not only the base of one."""
    arm: Arm
    difference: Difference | None = None
    """The difference from the same system on the base model; None for the base model, and where that is missing."""
    p_holm: float | None = None
    """The p value with Holm's correction over all differences of the stage."""
    best_untrained: BaselineComparison | None = None
    """A tested choice against the best system on the base model; None without another than its own."""


class SweepChoice(Record):
    """The best checkpoint of a system, by dev alone."""

    system: str
    checkpoint: str
    policy: str
    mean: float
    """The mean over the dev sets."""
    sentence: str


class TestEvaluation(Record):
    """One choice measured on one test set. It is recorded before the measurement, so that none is lost."""

    split: str
    digest: str
    system: str
    checkpoint: str
    policy: str
    at: str
    """UTC, ISO 8601."""


class TestRecord(Record):
    """sweep/test.json"""

    looks: tuple[TestEvaluation, ...] = ()


class SweepResults(Record):
    """sweep.json: the results of all finished cells."""

    run: str
    samples: int
    seed: int
    resamples: int
    checkpoints: tuple[Checkpoint, ...]
    systems: dict[str, str]
    """By name in the sweep, the system's module in agents/."""
    sets: tuple[SetFacts, ...]
    cells: tuple[CellResult, ...]
    missing: tuple[str, ...]
    """The cells that are not finished, with what each lacks."""
    choices: tuple[SweepChoice, ...]
    undecided: tuple[str, ...]
    """The systems without a choice, each with the reason."""
    notes: tuple[str, ...]

    def set(self, name: str) -> SetFacts:
        return next(facts for facts in self.sets if facts.name == name)


def read_test_record(folder: Path) -> TestRecord:
    """The sweep's test.json; an empty record where there is none."""
    fix = "it records what was tested: restore it, do not delete it"
    return read_record(_path(folder), TestRecord, fix) or TestRecord()


def _path(folder: Path) -> Path:
    return folder / "test.json"


def evaluations_of(record: TestRecord, asked: SweepQuestionSet, system: str) -> list[TestEvaluation]:
    """The system's recorded evaluations on these questions, whatever the set was called then."""
    return [look for look in record.looks if (look.digest, look.system) == (asked.digest, system)]


def record_evaluations(sweep: Sweep, choices: Sequence[SweepChoice], again: bool) -> None:
    """Record that these choices are measured on the test sets. Raises UserError where another one was before.

    Resuming with the same choice adds no record.
    """
    record = read_test_record(sweep.folder)
    new: list[TestEvaluation] = []
    for choice in choices:
        for asked in sweep.test:
            before = evaluations_of(record, asked, choice.system)
            if before and before[-1].policy == choice.policy:
                continue
            if before and not again:
                last = before[-1]
                raise UserError(
                    f"{_path(sweep.folder)}: {asked.name} was already measured on {last.at}, with {last.checkpoint} "
                    f"for {choice.system}; dev now chooses {choice.checkpoint}. Measuring several choices on one "
                    "test set is choosing on it: its numbers are then optimistically biased. Report the first result, "
                    "use a fresh test set, or add --again; every table then says how often the set was measured."
                )
            new.append(
                TestEvaluation(
                    split=asked.name,
                    digest=asked.digest,
                    system=choice.system,
                    checkpoint=choice.checkpoint,
                    policy=choice.policy,
                    at=datetime.now(UTC).isoformat(timespec="seconds"),
                )
            )
    if new:
        record = TestRecord(looks=(*record.looks, *new))
        write_record(_path(sweep.folder), record)


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
    choices, undecided = ([], []) if sweep.is_grid else _choices(sweep, arms)
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
    corrected = holm_by(differences)
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


def _choices(sweep: Sweep, arms: Mapping[str, Arm]) -> tuple[list[SweepChoice], list[str]]:
    """The choices on dev, and for each system without one the reason."""
    choices, undecided = [], []
    measure = sweep.dev[0].measure
    for system in sweep.systems:
        names = {
            one.name: [sweep.cell(one.name, system, asked).name for asked in sweep.dev] for one in sweep.checkpoints
        }
        if lacking := [cell for cells in names.values() for cell in cells if cell not in arms]:
            undecided.append(f"{system}: finish these cells before choosing a checkpoint: {', '.join(lacking)}")
            continue
        values = {
            name: [arms[cell].known(asked.measure) for cell, asked in zip(cells, sweep.dev, strict=True)]
            for name, cells in names.items()
        }
        chosen = choose(values, lower_is_better=measure_of(measure).better == "lower")
        if chosen is None:
            undecided.append(f"{system}: on some dev set no question has a value under every checkpoint")
            continue
        policy = next(one.policy for one in sweep.checkpoints if one.name == chosen.best)
        choices.append(
            SweepChoice(
                system=system,
                checkpoint=chosen.best,
                policy=policy,
                mean=chosen.means[chosen.best],
                sentence=choice_sentence(system, chosen.means, measure),
            )
        )
    return choices, undecided


def choice_sentence(system: str, means: Mapping[str, float], measure: str) -> str:
    """The sentence on a system's choice. `means`: by checkpoint, the best first."""
    (best, mean), *others = means.items()
    text = f"{system}: best on dev is {best}, {measure_of(measure).short} {mean:.3f}"
    if not others:
        return f"{text}; it is the only checkpoint."
    runner_up, next_mean = others[0]
    gap = abs(mean - next_mean)
    ahead = (
        f"{gap:.3f} ahead of {runner_up}" if gap >= 0.0005 else f"level with {runner_up}, which is later in the sweep"
    )
    return (
        f"{text}, {ahead}. The best of {len(means)} is optimistically biased on the questions that chose it: rely on "
        "the test sets for its quality."
    )


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


def _notes(sweep: Sweep, record: TestRecord, choices: Sequence[SweepChoice], arms: Mapping[str, Arm]) -> list[str]:
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


STAGES = {
    "test": "Test: the chosen checkpoints, measured once",
    "dev": "Dev: every checkpoint",
    "grid": "Every checkpoint, and none chosen",
}
CAPTION = """\
difference: paired by question, against the same system on the base model, with
its 95% bootstrap interval (none where all are equal); p: paired sign-flip test,
Holm's correction over the {tests} of this table; (number): a difference on so
many questions, those on which both have a value; *: the best on dev"""


def print_sweep(results: SweepResults, out: TextIO | None = None, all_measures: bool = False) -> None:
    """Print the test's table, or where nothing was tested the one of dev, then the choices, notes and missing cells.
    With `all_measures` both tables are printed."""
    console = wide_console(NARROW, out)
    stages = [stage for stage in STAGES if any(cell.stage == stage for cell in results.cells)]
    for stage in stages if all_measures else stages[:1]:
        cells = [cell for cell in results.cells if cell.stage == stage]
        print_table(_table(results, STAGES[stage], cells), out, wraps=True)
    untrained = [
        f"{cell.split}, {cell.system}, {cell.checkpoint}: "
        f"{baseline_sentence(cell.best_untrained, results.set(cell.split).measure)}"
        for cell in results.cells
        if cell.best_untrained is not None
    ]
    sentences = (choice.sentence for choice in results.choices)
    for line in (*sentences, *untrained, *results.undecided, *results.notes):
        console.print(line, markup=False)
    if len(stages) > 1 and not all_measures:
        console.print("Every checkpoint on dev: `ratchet sweep merge --all-measures`.")
    if results.missing:
        console.print(f"{len(results.missing)} cell(s) are missing:", style="bold")
        for line in results.missing:
            console.print(f"  {line}", markup=False)


def _table(results: SweepResults, title: str, cells: Sequence[CellResult]) -> Table:
    tests = sum(cell.p_holm is not None for cell in cells)
    caption = CAPTION.format(tests=f"{tests} difference{'' if tests == 1 else 's'}")
    numbers = ("mean", "difference", "p", "calls", "tokens")
    table = new_table(title, ("system", "checkpoint"), numbers, caption)
    chosen = {(choice.system, choice.checkpoint) for choice in results.choices}
    systems = list(results.systems)
    for asked in results.sets:
        of_set = [cell for cell in cells if cell.split == asked.name]
        if of_set:
            table.add_section()
            heading = f"{asked.title}: {measure_of(asked.measure).title}, {asked.questions} questions"
            table.add_row(Text(heading, "bold"))
        for cell in sorted(of_set, key=lambda cell: systems.index(cell.system)):
            estimate = cell.arm.measures.get(asked.measure)
            table.add_row(
                cell.system,
                cell.checkpoint + (" *" if (cell.system, cell.checkpoint) in chosen else ""),
                format_mean(estimate, asked.measure),
                format_difference(cell.difference.model_copy(update={"p": cell.p_holm}), asked.measure)
                + paired_count(cell.difference, estimate)
                if cell.difference
                else "",
                "" if cell.p_holm is None else format_p(cell.p_holm),
                mean_cost([cell.arm], "calls"),
                mean_cost([cell.arm], "prompt_tokens", "new_tokens"),
            )
    return table
