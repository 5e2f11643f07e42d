"""The state of a run: the stages that are done, the progress of the others, and what was promoted.

It is read from the run folder alone: nothing is written and no model is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TextIO

from ratchet.core.config import load_members
from ratchet.core.errors import UserError
from ratchet.core.files import count_lines, read_json_file, read_log
from ratchet.core.locks import holder_of
from ratchet.core.progress import duration
from ratchet.core.runfolder import RoundFolder
from ratchet.core.tables import new_table, print_table, wide_console
from ratchet.rounds.artefacts import Arms, Digests, File, Segments
from ratchet.rounds.ledger import SENTENCES, latest_entries, reason_to_run
from ratchet.rounds.records import SPLIT, Entry, last_promoted, read_promotions, why_it_ended
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
    states = stage_states(experiment, Digests(experiment.run))
    table = new_table(str(experiment.run.path), ("round", "stage", "state"), ())
    table.add_column("")  # this one may be broken into lines
    for number, *texts in states:
        table.add_row(str(number), *texts)
    print_table(table, out, wraps=True)
    left = next((one for one in states if one.state != "done"), None)
    resume = f"Every stage is done: {experiment.run.report}"
    if left is not None:
        resume = f"It resumes with '{left.title}' of round {left.round}: `ratchet selftrain` with the same config."
    holder = holder_of(experiment.run.path / LOCK)
    for line in (*_promotion_lines(experiment), f"Running now: {holder}" if holder else resume):
        console.print(line, markup=False, soft_wrap=True)


class StageState(NamedTuple):
    """The state of one stage."""

    round: int
    title: str
    state: str
    """'done', 'part', 'to do again' or 'to do'."""
    note: str
    """The facts of a stage that is done, the progress of one in part, or the reason to do it again."""


def stage_states(experiment: ExperimentRun, digests: Digests) -> list[StageState]:
    """The states of all stages, in order."""
    known, states = latest_entries(experiment.run), []
    for stage in stages_of(experiment):
        entry, due = known.get(stage.key), reason_to_run(stage, known, digests)
        if due is None and entry is not None:
            state, note = "done", summarize_entry(entry)
        elif due is not None and entry is not None and stage.writes:
            state, note = "to do again", due.reason
            trajectories = stage.writes.get("trajectories")
            if isinstance(trajectories, Segments):
                missing, planned = TrajectoryStore(trajectories.folder).missing()
                note += f"; {planned - missing} of {planned} trajectories" if missing else ""
        else:
            note = stage_progress(experiment, stage)
            state = "part" if note else "to do"
        states.append(StageState(stage.round, stage.title, state, note))
    return states


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
    """The progress of a stage that was not finished; empty where it has not started."""
    if isinstance(rows := stage.writes.get("rows"), File):
        return training_progress(RoundFolder(rows.path.parent))
    lines = next((written for written in stage.writes.values() if isinstance(written, Segments | Arms)), None)
    results = [file for name, file in stage.writes.items() if name.startswith("evaluation") and isinstance(file, File)]
    if lines is None and results:
        splits = [SPLIT] if stage.id == "promote" else experiment.config.evaluation.question_sets
        lines = Arms(RoundFolder(results[0].path.parents[1]), tuple(splits))
    done = count_lines(lines.files()) if lines else 0
    if not done:
        return ""
    if isinstance(lines, Arms):
        return _of_all(done, sum(store.progress()[1] for store in lines.stores().values()), "trajectories")
    if stage.id == "sample" and isinstance(lines, Segments):
        return _of_all(*TrajectoryStore(lines.folder).progress(), "trajectories")
    if not isinstance(lines, Segments):
        return f"{done} trajectories so far"
    sampled = TrajectoryStore(lines.folder.with_name("trajectories")).progress()[1]
    rewards = load_members(experiment.config)[stage.member].rewards.weights
    selection = RoundFolder(lines.folder.parent).read_selection()
    nothing = "; none was kept" if selection is not None and not selection.kept else ""
    return _of_all(done, sampled * len(rewards), "scores") + nothing


def _of_all(done: int, planned: int, what: str) -> str:
    """A folder may hold more than what is planned now, such as trajectories of an earlier version of a system."""
    return f"{done} of {planned} {what}" if done <= planned else f"{done} {what} so far"


def training_progress(folder: RoundFolder) -> str:
    """The last step in the log, and the number of steps where a checkpoint has it."""
    steps = [line["step"] for line in read_log(folder.training / "log.jsonl")]
    states = (path / "trainer_state.json" for _, path in checkpoints(folder.training))
    newest = next((path for path in states if path.exists()), None)
    of_all = f" of {read_json_file(newest)['max_steps']}" if newest else ""
    return f"step {steps[-1]}{of_all}" if steps and steps[-1] else ""


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
