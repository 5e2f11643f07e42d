"""The training stage: a round's kept trajectories to a LoRA adapter (`training/recipe.py`).

    accelerate launch train.py --config configs/demo.yaml

Plain `python train.py` does the same on one device. `--from DIR` continues to train an adapter, as later rounds do.
`--control random` trains on as many randomly chosen trajectories as were kept, below the round's folder: what the
evaluation compares with to see what selection is worth; `--control gold` on gold answers (evaluation.controls).

Interrupted at any point, the same command resumes from the last complete checkpoint, with the same loss curve. When the
adapter is there and was trained on the same rows, model and settings, the command says so and ends.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
from contextlib import nullcontext
from pathlib import Path

from ratchet.commands.checks import check_training_extras
from ratchet.commands.recording import recorded_stages
from ratchet.core.config import Config, TrainedControl, load_members
from ratchet.core.errors import UserError
from ratchet.core.files import write_record
from ratchet.core.locks import Lock
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.questions.leakage import check_leakage
from ratchet.questions.manifest import open_run
from ratchet.rounds.records import StageId
from ratchet.training.schedule import check_model_is_open

PR_SET_PDEATHSIG = 1


def train(config: Config, options: argparse.Namespace) -> None:
    """Train the adapter of a round; see the top of this file."""
    stop_with_launcher()
    stages: dict[str | None, StageId] = {"random": "train.random", "gold": "train.gold"}
    stage = stages.get(options.control, "train")
    recording = recorded_stages(config, stage, number=options.round, adapter=options.start, anyway=options.anyway)
    with recording if _is_writer() else nullcontext():
        train_round(config, options.round, options.start, options.control)
    from ratchet.training.processes import end_process  # late: it imports torch

    end_process()


def stop_with_launcher() -> None:
    """Ask the system for a SIGTERM when `accelerate launch` ends: with one process it does not pass SIGTERM on."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None and any(name.startswith("ACCELERATE_") for name in os.environ):
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _is_writer() -> bool:
    return os.environ.get("RANK", "0") == "0"


def train_round(config: Config, number: int, start: Path | None = None, control: TrainedControl | None = None) -> None:
    """Train round `number`, from the adapter in folder `start` if there is one; or one of its controls. What is missing
    is said before torch is loaded."""
    # Late: the command's help needs none of it.
    from ratchet.training.rows import prepare_rows, read_kept, warn_of_single_answer
    from ratchet.training.unsloth import import_unsloth

    training, model = config.training, config.models[config.training.model]
    if training.backend == "unsloth":  # before anything imports transformers, which it patches
        import_unsloth()
    check_training_extras(training)
    check_model_is_open(training.model, model)
    if control and (problem := config.why_no_trained_control()):
        raise UserError(f"--control {control} is not possible here: {problem}")
    round_folder = RunFolder(config.folder).round(number)
    folder = round_folder.control(control) if control else round_folder
    # The lock is taken before it looks for earlier work.
    with Lock(folder.path / ".training.lock", str(folder.training)) if _is_writer() else nullcontext():
        if control and _is_writer():
            _write_control(config, round_folder, control)
        warnings = [warning for member in load_members(config).values() for warning in check_leakage(member)]
        rows = None
        if _is_writer():
            open_run(config)
            kept = read_kept(config, folder)
            if not control:
                warn_of_single_answer(kept)
            rows = prepare_rows(config, folder, kept)
        from ratchet.training.recipe import train  # late: it imports torch

        train(config, folder, rows, start, warnings)


def _write_control(config: Config, folder: RoundFolder, control: TrainedControl) -> None:
    from ratchet.rewards.selection import select_at_random
    from ratchet.sampling.store import TrajectoryStore
    from ratchet.training.gold import write_gold
    from ratchet.training.rows import read_kept_selection

    if control == "gold":
        write_gold(folder, config)
        return
    selection = read_kept_selection(folder)
    sampled = [key for choice in selection.questions if choice.kept for key in choice.rewards]
    chosen = select_at_random(
        selection, TrajectoryStore(folder.trajectories).open(sampled).outlines.values(), config.seed
    )
    if folder.control("random").read_selection() != chosen:
        write_record(folder.control("random").selection, chosen)
