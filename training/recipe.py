"""What `train.py` does, from top to bottom: rows, earlier work, model, LoRA, steps, the published adapter.

What is missing is said before torch is loaded, so torch and what needs it are imported where they are first used.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from questions.leakage import check_leakage, training_question_digests
from ratchet.config import Config, ModelConfig, load_members
from ratchet.errors import UserError
from ratchet.files import read_log, write_json, write_record
from ratchet.lease import Lease
from ratchet.plugins import short_name
from ratchet.runfolder import ControlFolder, RoundFolder, RunFolder, open_run

if TYPE_CHECKING:
    import pyarrow as pa
    from accelerate import PartialState

    from training.rows import RowsFile
    from training.schedule import Schedule

PR_SET_PDEATHSIG = 1


def stop_with_launcher() -> None:
    """Ask the system for a SIGTERM when `accelerate launch` ends: with one process it does not pass SIGTERM on."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None and any(name.startswith("ACCELERATE_") for name in os.environ):
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def check_model_is_open(config: Config) -> None:
    """Raises UserError where the model that is to be trained is a closed one."""
    name = config.training.model
    if config.models[name].engine == "chat-api":
        raise UserError(
            f"models.{name}: {config.models[name].path} is a closed model (engine: chat-api), which cannot be trained; "
            "train an open model, or only evaluate: python -m evaluation --base-only"
        )


def train(config: Config, number: int, start: Path | None = None, at_random: bool = False) -> None:
    """Train round `number`, from the adapter in folder `start` if there is one. `at_random`: the control, trained on as
    many randomly chosen trajectories as were kept."""
    if config.training.backend == "unsloth":  # before anything imports transformers, which it patches
        from training.unsloth import import_unsloth

        import_unsloth()
    check_model_is_open(config)
    if at_random and (problem := config.why_no_random_control()):
        raise UserError(f"--control random is not possible here: {problem}")
    from training.examples import check_lessons
    from training.rows import check_token_ids, read_kept

    round_folder = RunFolder(config.folder).round(number)
    # Says what is missing before torch is loaded.
    kept = read_kept(config, round_folder)
    check_lessons(config.training, [one.selection for one in kept])
    check_token_ids(kept)
    # One process of several writes; it takes the lease before it looks for earlier work.
    is_writer = os.environ.get("RANK", "0") == "0"
    folder = round_folder.random_control if at_random else round_folder
    with Lease(folder.path / ".training.lease", str(folder.training)) if is_writer else nullcontext():
        if at_random and is_writer:
            _select_at_random(config, round_folder)
        _train(config, folder, start)
    from training.processes import leave_process_group  # late: it imports torch

    leave_process_group()


def _select_at_random(config: Config, folder: RoundFolder) -> None:
    """Write the selection of the round's control."""
    from rewards.selection import select_at_random
    from sampling.store import TrajectoryStore
    from training.rows import read_kept_selection

    selection = read_kept_selection(folder)
    sampled = [key for choice in selection.questions if choice.kept for key in choice.rewards]
    chosen = select_at_random(selection, TrajectoryStore(folder.trajectories).load(sampled), config.seed)
    if folder.random_control.read_selection() != chosen:
        write_record(folder.random_control.selection, chosen)


def _train(config: Config, folder: RoundFolder, start: Path | None) -> None:
    from training.examples import compares_actions
    from training.rows import has_lessons, prepare_rows, split_rows

    warnings = [warning for member in load_members(config).values() for warning in check_leakage(member)]
    if compares_actions(config.training) and os.environ.get("RANK", "0") == "0":
        open_run(config)
        prepare_rows(config, folder)  # says that no actions differ before torch is loaded
    state = _start_processes(config.models[config.training.model])

    from training.adapter import is_made_of
    from training.packing import packing_of
    from training.schedule import schedule
    from training.trainer import silence_libraries

    silence_libraries()
    for warning in warnings:
        say(state, warning)

    # The main process builds the rows and looks for earlier work; the others then read the same.
    with state.main_process_first():
        run = open_run(config)
        rows, questions = prepare_rows(config, folder)
        inputs = _training_inputs(config, rows, start)
        target = published_folder(config, folder)
        if is_made_of(target, inputs):
            say(state, f"{target} is complete: trained on the same rows, model and settings")
            return
        if not is_made_of(folder.training, inputs):
            write_json(folder.training / "training.json", {"made_of": inputs})

    table = rows.table
    if has_lessons(table):
        from training.objective_trainer import with_numbers

        table = with_numbers(table)
        sampled, first = sampling_policies(config, folder), inputs["starting adapter"] or "base"
        if others := sorted(sampled - {first}):
            say(
                state,
                f"the trajectories were sampled by {' and '.join(others)}, and training starts from {first}: it is the "
                "reference model",
            )
    train_rows, dev_rows = split_rows(table, questions, config.training.dev_fraction, config.seed)
    packing = packing_of(train_rows, config.training)
    plan = schedule(packing.slots if packing else len(train_rows), config.training, state.num_processes)
    _announce(config, train_rows, dev_rows, plan, state)
    dev_loss_before = optimise(config, folder, train_rows, dev_rows, plan, state, start)
    if state.is_main_process:
        _publish(config, run, folder, inputs, rows, train_rows, dev_rows, plan, dev_loss_before)
    state.wait_for_everyone()


def published_folder(config: Config, folder: RoundFolder) -> Path:
    """Where training leaves its adapter: the round's, or one that `python -m rounds choose` has to choose first."""
    return folder.adapter if config.training.choose_by == "held_out_loss" else folder.candidate


def sampling_policies(config: Config, folder: RoundFolder) -> set[str]:
    """'base' or digests of adapters: what sampled the round's trajectories."""
    from sampling.store import TrajectoryStore
    from training.rows import read_kept

    stores = [TrajectoryStore(kept.folder.trajectories) for kept in read_kept(config, folder)]
    return {policy for store in stores if (policy := store.system_and_policy()[1])}


def _start_processes(model: ModelConfig) -> PartialState:
    """Join the other processes of this training, if there are any."""
    import torch
    from accelerate import PartialState

    from training.lora import on_cpu
    from training.processes import PROCESS_TIMEOUT

    if not on_cpu(model) and torch.cuda.device_count() > 1 and "WORLD_SIZE" not in os.environ:
        raise UserError(
            f"{torch.cuda.device_count()} GPUs are visible to one process: use `accelerate launch train.py ...` to "
            "train on all of them, or CUDA_VISIBLE_DEVICES=0 to use one"
        )
    return PartialState(cpu=on_cpu(model), timeout=PROCESS_TIMEOUT)


def _training_inputs(config: Config, rows: RowsFile, start: Path | None) -> dict[str, Any]:
    """What the adapter is trained from; training again with something else is refused."""
    from inference.adapters import read_adapter
    from inference.local.model import model_fingerprint

    return {
        "rows": rows.digest,
        "base model": model_fingerprint(config.models[config.training.model]),
        "training settings": config.training.settings(),
        "seed": config.seed,
        "starting adapter": read_adapter(start).digest if start else None,
    }


def _announce(config: Config, train_rows: pa.Table, dev_rows: pa.Table, plan: Schedule, state: PartialState) -> None:
    from training.rows import loss_tokens, row_lengths
    from training.schedule import describe_adjustments

    for line in describe_adjustments(len(train_rows), config.training, plan):
        say(state, line)
    say(
        state,
        f"{len(train_rows)} rows of {sum(row_lengths(train_rows))} tokens ({loss_tokens(train_rows)} learnt), "
        f"{len(dev_rows)} rows held out; {plan.steps} steps of {plan.batch} rows, learning rate up to "
        f"{config.training.learning_rate:g} after {plan.warmup} steps of warm-up",
    )
    if not len(dev_rows) and config.training.dev_fraction:
        say(state, "too few questions to hold any out: no dev loss, the last step's adapter is kept")


def optimise(
    config: Config,
    folder: RoundFolder,
    train_rows: pa.Table,
    dev_rows: pa.Table,
    plan: Schedule,
    state: PartialState,
    start: Path | None,
) -> float | None:
    """Run or finish the optimisation, which leaves the evaluated adapters in folder.training; the first dev loss."""
    import torch

    from inference.chat import load_tokenizer
    from training.callback import TrainingCallback
    from training.checkpoints import EvaluatedAdapters, checkpoints, last_complete
    from training.lora import add_lora, load_model, start_from_adapter
    from training.objective_trainer import ObjectiveTrainer
    from training.packing import packing_of
    from training.processes import explain_lost_processes
    from training.rows import has_lessons
    from training.trainer import RowTrainer, trainer_config

    training, model = config.training, config.models[config.training.model]
    packing = packing_of(train_rows, training)
    slots = packing.slots if packing else len(train_rows)
    arguments = trainer_config(training, model, folder.training, slots, config.seed, state.num_processes)
    # Resume from the last complete checkpoint, and delete those after it.
    found, messages = last_complete(folder.training)
    for message in messages:
        say(state, message)
    state.wait_for_everyone()
    if state.is_main_process:
        for step, path in checkpoints(folder.training):
            if found is None or step > found[0]:
                shutil.rmtree(path)

    watch = TrainingCallback(folder.training, training.eval_steps, has_dev=len(dev_rows) > 0, first=plan.first)
    if not (found and found[0] >= plan.steps and EvaluatedAdapters(folder.training).best()):
        tokenizer = load_tokenizer(model.path, model.revision)
        if training.backend == "unsloth":
            from training.unsloth import load_unsloth

            learner = load_unsloth(model, training, config.seed)
        else:
            learner = add_lora(load_model(model), training.lora, config.seed)
        if start is not None:
            start_from_adapter(learner, start)
        parts = (learner, tokenizer, arguments, train_rows, dev_rows, watch, found is not None)
        trainer = ObjectiveTrainer(*parts, training) if has_lessons(train_rows) else RowTrainer(*parts)
        try:
            with explain_lost_processes():
                trainer.train(resume_from_checkpoint=str(found[1]) if found else None)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"out of GPU memory ({str(error).splitlines()[0]}): lower training.micro_batch, set "
                "training.gradient_checkpointing=true, or lower training.max_length; then use a new run folder"
            ) from error
        finally:
            watch.close()
    return next((line["dev_loss"] for line in read_log(watch.log) if line["step"] == 0), None)


def _publish(
    config: Config,
    run: RunFolder,
    folder: RoundFolder,
    inputs: dict[str, Any],
    rows: RowsFile,
    train_rows: pa.Table,
    dev_rows: pa.Table,
    plan: Schedule,
    dev_loss_before: float | None,
) -> None:
    """Put the adapter with the lowest held-out loss in its folder, with the facts behind it."""
    from training.adapter import publish
    from training.card import data_licences, describe_base, example_prompt
    from training.checkpoints import EvaluatedAdapters
    from training.rows import loss_tokens, row_lengths

    best = EvaluatedAdapters(folder.training).best()
    assert best is not None, "training ended without an adapter"
    model = config.models[config.training.model]
    facts = {
        "made_of": inputs,
        "base_model": model.path,
        "base": describe_base(model, inputs["base model"]),
        "prompt": example_prompt(config),
        "data_licences": data_licences(config),
        "revision": model.revision,
        "run": config.run,
        "round": folder.number,
        "systems": sorted({short_name(member.system.name) for member in load_members(config).values()}),
        "code": json.loads(run.manifest.read_bytes())["code"],
        "training": inputs["training settings"],
        "steps": plan.steps,
        "batch": plan.batch,
        "warmup_steps": plan.warmup,
        **best[1],
        "dev_loss_before": dev_loss_before,
        "rows": {
            "train": len(train_rows),
            "dev": len(dev_rows),
            "tokens": sum(row_lengths(train_rows)),
            "loss_tokens": loss_tokens(train_rows),
            "roles": Counter(train_rows["role"].to_pylist()),
            "left_out": rows.skipped,
            "retokenised": sum(train_rows["retokenised"].to_pylist()),
        },
    }
    if isinstance(folder, ControlFolder):
        facts["control"] = "random"
    target = published_folder(config, folder)
    publish(best[0], target, facts, training_question_digests(config))
    loss = f", dev loss {dev_loss_before:.4f} -> {best[1]['dev_loss']:.4f}" if len(dev_rows) else ""
    message = f"{target}: the adapter after step {best[1]['step']} of {plan.steps}{loss}"
    if target != folder.adapter:
        message += "; by the loss on held-out kept actions, a cheap stand-in: `python -m rounds choose` decides on dev"
    print(message, file=sys.stderr, flush=True)


def say(state: PartialState, message: str) -> None:
    """Print a message once, however many processes there are."""
    if state.is_main_process:
        print(message, file=sys.stderr, flush=True)
