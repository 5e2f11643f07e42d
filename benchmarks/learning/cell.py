"""One cell: select from the task's stored trajectories, train an adapter, evaluate it, and keep what it scored."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmarks.learning.tasks import BASE, CONTROLS, Cell, Setting, cell_config, pool_config, task_folder, task_name
from commands.train import train_round
from evaluation.arms import arm_trajectories, check_leaks, open_scoring, sample_arms
from evaluation.comparisons import make_arm, primary_measure
from evaluation.measures.gain import LabelFloor, label_floor
from evaluation.results import BASE_IN_FORM, TRAINED, TRAINED_IN_FORM
from evaluation.round_arms import plan
from questions.load import load_questions
from questions.manifest import open_run
from ratchet.config import Config
from ratchet.errors import UserError
from ratchet.files import write_record
from ratchet.records import Record, questions_digest
from ratchet.runfolder import RoundFolder, RunFolder
from rewards.selection import select
from rewards.store import stored_scores
from sampling.store import TrajectoryStore


class CellResult(Record):
    """What a cell scored, by question; `result.json` of its folder."""

    task: str
    arm: str
    seed: int
    primary: str
    """The measure of `values` and `answered`."""
    questions: str
    """The digest of the questions, which all cells of a task share."""
    kinds: dict[str, str]
    """By question id, its kind."""
    values: dict[str, float]
    """The primary measure, in which an answer that is missing or out of form is wrong."""
    form: dict[str, float]
    """The share of trajectories that finished with an answer."""
    answered: dict[str, float]
    """The primary measure of such trajectories."""
    enforced: dict[str, float] = Field(default={})
    """The same with the form enforced by constrained decoding; empty unless `evaluation.controls` has form."""
    floor: LabelFloor | None
    """What no skill would score; None where questions have no labels."""
    training: dict[str, Any]
    """Facts of the training; empty for the base model."""
    train_seconds: float
    seconds: float
    finished: str
    """The date."""
    code: str
    """The commit that ran."""
    machine: dict[str, Any]


def result_path(out: Path, cell: Cell) -> Path:
    """The file of a cell's result; it is there when the cell is done."""
    return task_folder(out, cell.task) / cell.name / "result.json"


def run_cell(out: Path, setting: Setting, cell: Cell) -> None:
    """Train and evaluate the cell, resuming where it was stopped, and write its result.

    Raises UserError where the arm finds nothing to learn from.
    """
    began = time.monotonic()
    config = cell_config(out, setting, cell)
    run = open_run(config)
    adapter = None if cell.arm == BASE else train_cell(out, setting, cell, config)
    trained = time.monotonic()
    name = TRAINED if adapter else BASE
    wanted = (name, TRAINED_IN_FORM if adapter else BASE_IN_FORM)
    arms = [arm for arm in plan(config, [setting.split], adapter) if arm.name in wanted]
    check_leaks(config.questions.leakage, arms)
    sample_arms(config, arms, f"evaluate {cell}")
    questions = arms[0].asked.questions
    with open_scoring(config) as score:
        sampled = [(arm, arm_trajectories(arm.store)) for arm in arms]
        measured, *enforced = [
            make_arm(config, arm.name, *arm.store.system_and_policy(), questions, found, score(arm, found))
            for arm, found in sampled
        ]
    primary = primary_measure(config, questions)
    manifest = json.loads(run.manifest.read_bytes())
    result = CellResult(
        task=task_name(cell.task),
        arm=cell.arm,
        seed=cell.seed,
        primary=primary,
        questions=questions_digest(questions),
        kinds={question.id: question.kind for question in questions},
        values={i: values.get(primary) or 0.0 for i, values in measured.values.items()},
        form={i: values.get("answered") or 0.0 for i, values in measured.values.items()},
        answered=measured.answered,
        enforced=enforced[0].answered if enforced else {},
        floor=label_floor(questions),
        training=_training_facts(adapter) if adapter else {},
        train_seconds=round(trained - began, 1),
        seconds=round(time.monotonic() - began, 1),
        finished=datetime.now(UTC).date().isoformat(),
        code=manifest["code"] or "",
        machine=manifest["machine"],
    )
    write_record(result_path(out, cell), result)
    if adapter is not None:  # the checkpoints of hundreds of cells fill a disk; the adapter stays
        shutil.rmtree(adapter.parent / "training", ignore_errors=True)


def train_cell(out: Path, setting: Setting, cell: Cell, config: Config) -> Path:
    """Train on the pool's trajectories as `train.py` does in the pool's own folder; the adapter's folder."""
    folder, pool = RunFolder(config.folder).round(1), pool_config(out, setting, cell.task)
    source = RunFolder(pool.folder).round(1)
    if not folder.trajectories.exists():
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.trajectories.symlink_to(source.trajectories.resolve(), target_is_directory=True)
    control = CONTROLS.get(cell.arm.split("+")[0])
    _select(config, pool, folder, source, may_be_empty=control == "gold")
    train_round(config, 1, control=control)
    return (folder.control(control) if control else folder).adapter


def _select(config: Config, pool: Config, folder: RoundFolder, source: RoundFolder, may_be_empty: bool) -> None:
    """Select from the pool by the cell's own rule, without scoring again."""
    trajectories = TrajectoryStore(source.trajectories)
    keys = trajectories.keys()
    scores = stored_scores(source.scores, set(keys))
    questions = load_questions(pool.questions.train, pool.seed)
    chosen = select(questions, trajectories.load(keys), scores, config.rewards.weights, config.rewards.select)
    if not (chosen.kept or may_be_empty):
        raise UserError(f"{folder.path}: this rule keeps no trajectory of {source.path}")
    if folder.read_selection() != chosen:
        write_record(folder.selection, chosen)


def _training_facts(adapter: Path) -> dict[str, Any]:
    facts = json.loads((adapter / "training.json").read_bytes())
    return {key: facts[key] for key in ("steps", "step", "dev_loss_before", "dev_loss", "rows") if key in facts}
