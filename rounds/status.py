"""Where a run is: what is done, how far the stage is that is not, what was promoted, what is left.

Read from the run folder alone: nothing is written and no model is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from ratchet.core.errors import UserError
from ratchet.core.files import count_lines, read_json_file, read_log
from ratchet.core.locks import holder_of
from ratchet.core.progress import duration
from ratchet.core.runfolder import RoundFolder
from ratchet.core.tables import print_table, wide_console
from ratchet.evaluation.arms import evaluated_splits
from ratchet.rounds.artefacts import Adapter, Arms, Digests, JsonlFiles
from ratchet.rounds.ledger import SENTENCES, latest_entries, reason_to_run
from ratchet.rounds.records import Entry, last_promoted, read_promotions, why_it_ended
from ratchet.rounds.stages import ExperimentRun, Stage, stages_of
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.checkpoints import checkpoints

WIDTH = 140
LOCK = ".lock"
"""In the run folder, while the loop is at work."""


def print_status(experiment: ExperimentRun, out: TextIO | None = None) -> None:
    """Print the table of stages, the promotions, and where the run resumes."""
    if not experiment.run.config.exists():
        raise UserError(
            f"{experiment.run.path}: there is no such run yet; `ratchet selftrain` with this config starts it"
        )
    console = wide_console(WIDTH, out)
    table, resume = status_table(experiment)
    print_table(table, out, wraps=True)
    holder = holder_of(experiment.run.path / LOCK)
    for line in (*_promotion_lines(experiment), f"Running now: {holder}" if holder else resume):
        console.print(escape(line), soft_wrap=True)


def status_table(experiment: ExperimentRun) -> tuple[Table, str]:
    """A row for each stage, and where the run resumes."""
    table = Table(title=str(experiment.run.path), box=SIMPLE_HEAD, title_justify="left")
    for heading in ("round", "stage", "state", ""):
        table.add_column(heading, no_wrap=heading != "")
    known, digests = latest_entries(experiment.run), Digests(experiment.run)
    first: Stage | None = None
    for stage in stages_of(experiment):
        entry, due = known.get(stage.key), reason_to_run(stage, known, digests)
        if due is None and entry is not None:
            state, note = "done", summarize_entry(entry)
        elif due is not None and entry is not None and stage.writes:
            state, note = "to do again", due.reason
        else:
            note = "" if first else stage_progress(experiment, stage)
            state = "part" if note else "to do"
        first = first or (stage if due else None)
        table.add_row(str(stage.round), escape(stage.title), state, escape(note))
    if first is None:
        return table, f"Every stage is done: {experiment.run.report}"
    return table, f"It resumes with '{first.title}' of round {first.round}: `ratchet selftrain` with the same config."


def summarize_entry(entry: Entry) -> str:
    """The facts of a finished stage, in a line."""
    shown = ", ".join(
        f"{name.replace('_', ' ')} {_short(value)}"
        for name, value in entry.facts.items()
        if name not in SENTENCES and isinstance(value, bool | int | float | str)
    )
    line = f"{shown} ({duration(entry.seconds)})" if shown else duration(entry.seconds)
    return f"{line}; done with --anyway: {entry.anyway}" if entry.anyway else line


def _short(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def stage_progress(experiment: ExperimentRun, stage: Stage) -> str:
    """How far a stage is that was not finished; empty where it has not started."""
    folder = experiment.run.round(stage.round)
    if isinstance(adapter := stage.writes.get("adapter"), Adapter):
        return _training(RoundFolder(adapter.folder.parent))
    lines = next((a for name, a in stage.writes.items() if isinstance(a, JsonlFiles | Arms)), None)
    if lines is None and "evaluation" in stage.writes:
        lines = Arms(folder, tuple(evaluated_splits(folder)))
    done = count_lines(lines.files()) if lines else 0
    if not done:
        return ""
    if stage.id == "sample" and isinstance(lines, JsonlFiles):
        done, total = TrajectoryStore(lines.folder).progress()
        return f"{done} of {total} trajectories"
    return f"{done} {'scores' if 'scores' in stage.writes else 'trajectories'} so far"


def _training(folder: RoundFolder) -> str:
    """The last step in the log, and how many there are where a checkpoint says so."""
    steps, total = read_training_steps(folder)
    return f"step {steps}{f' of {total}' if total else ''}" if steps else ""


def read_training_steps(folder: RoundFolder) -> tuple[int, int | None]:
    """(the last step in a training's log, how many there are where a checkpoint says so)."""
    steps = [line["step"] for line in read_log(folder.training / "log.jsonl")]
    states = (path / "trainer_state.json" for _, path in checkpoints(folder.training))
    newest = next((path for path in states if path.exists()), None)
    total = int(read_json_file(newest)["max_steps"]) if newest else None
    return (steps[-1] if steps else 0), total


def _promotion_lines(experiment: ExperimentRun) -> Iterator[str]:
    count = experiment.config.rounds.count
    if count == 1:
        return
    promotions = read_promotions(experiment.run)
    for promotion in promotions:
        yield f"round {promotion.round}: {promotion.reason}"
    if promotions and promotions[-1].warning:
        yield f"warning: {promotions[-1].warning}"
    if ended := why_it_ended(experiment.config):
        yield ended
    best = last_promoted(experiment.run, before=count + 1)
    yield f"Promoted last: {experiment.run.round(best).adapter if best else 'the base model'}"
