"""What `train.py` does, from top to bottom: rows, earlier work, model, LoRA, steps, the published adapter.

What is missing is said before torch is loaded, so torch and what needs it are imported where they are first used.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from questions.leakage import check_leakage
from questions.manifest import open_run
from ratchet.config import Config, ModelConfig, TrainedControl, load_members
from ratchet.errors import UserError
from ratchet.files import read_log, write_json, write_record
from ratchet.lease import Lease
from ratchet.runfolder import RoundFolder, RunFolder, earlier_rounds
from training.publication import TrainingJob, publish_adapter, published_folder

if TYPE_CHECKING:
    from accelerate import PartialState

    from training.role_adapters import Groups
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


def train(config: Config, number: int, start: Path | None = None, control: TrainedControl | None = None) -> None:
    """Train round `number`, from the adapter in folder `start` if there is one; or one of its controls
    (evaluation.controls)."""
    if config.training.backend == "unsloth":  # before anything imports transformers, which it patches
        from training.unsloth import import_unsloth

        import_unsloth()
    check_model_is_open(config)
    if control and (problem := config.why_no_trained_control()):
        raise UserError(f"--control {control} is not possible here: {problem}")
    from training.examples import check_lessons
    from training.kept import check_token_ids, read_kept, warn_of_single_answer

    round_folder = RunFolder(config.folder).round(number)
    # One process of several writes; it takes the lease before it looks for earlier work.
    is_writer = os.environ.get("RANK", "0") == "0"
    # Says what is missing before torch is loaded.
    if control != "gold":  # which needs no kept trajectory
        kept = read_kept(config, round_folder)
        if is_writer and not control:
            warn_of_single_answer(kept)
        check_lessons(config.training, [one.selection for one in kept])
        check_token_ids(kept)
    folder = round_folder.control(control) if control else round_folder
    with Lease(folder.path / ".training.lease", str(folder.training)) if is_writer else nullcontext():
        for one in (*earlier_rounds(config, round_folder), round_folder) if control and is_writer else ():
            if control == "gold":
                from training.gold import write_gold

                write_gold(config, one)
            else:
                _select_at_random(config, one)
        _train(config, folder, start)


def _select_at_random(config: Config, folder: RoundFolder) -> None:
    """Write the selection of the round's control."""
    from rewards.selection import select_at_random
    from sampling.store import TrajectoryStore
    from training.kept import read_kept_selection

    selection = read_kept_selection(folder)
    sampled = [key for choice in selection.questions if choice.kept for key in choice.rewards]
    chosen = select_at_random(selection, TrajectoryStore(folder.trajectories).load(sampled), config.seed)
    if folder.control("random").read_selection() != chosen:
        write_record(folder.control("random").selection, chosen)


def _train(config: Config, folder: RoundFolder, start: Path | None) -> None:
    from training.examples import compares_actions
    from training.role_adapters import role_groups
    from training.rows import has_lessons, prepare_rows, split_rows

    warnings = [
        warning
        for member in load_members(config).values()
        for warning in check_leakage(member.splits, member.seed, member.questions.leakage)
    ]
    several = config.training.adapters != "shared"
    if (compares_actions(config.training) or several) and os.environ.get("RANK", "0") == "0":
        open_run(config)
        # Says that no actions differ, or that a role has no rows, before torch is loaded.
        role_groups(config.training, prepare_rows(config, folder)[0].table)
    state = _start_processes(config.models[config.training.model])

    from training.adapter import is_made_of
    from training.trainer import silence_libraries

    silence_libraries()
    for warning in warnings:
        say(state, warning)

    # The main process builds the rows and looks for earlier work; the others then read the same.
    with state.main_process_first():
        run = open_run(config)
        rows, questions = prepare_rows(config, folder)
        inputs = _training_inputs(config, rows.digest, start)
        target = published_folder(config, folder)
        if is_made_of(target, inputs):
            say(state, f"{target} is complete: trained on the same rows, model and settings")
            return
        if not is_made_of(folder.training, inputs):
            write_json(folder.training / "training.json", {"made_of": inputs})

    table = rows.table
    if has_lessons(table):
        if config.training.backend == "unsloth":
            raise UserError(
                "training.backend: rows with weights need logits, which unsloth does not give; set it to peft"
            )
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
    job = TrainingJob(config, run, folder, inputs, rows.skipped, train_rows, dev_rows, start, state)
    if groups := role_groups(config.training, rows.table):
        _train_groups(job, groups)
    else:
        _train_adapter(job)


def _train_adapter(job: TrainingJob) -> None:
    """Train one adapter on its rows, and publish it."""
    from training.lora import mixes_precision
    from training.packing import packing_of
    from training.schedule import schedule

    config, state = job.config, job.state
    packing = packing_of(job.train_rows, config.training)
    plan = schedule(packing.slots if packing else len(job.train_rows), config.training, state.num_processes)
    mixed = mixes_precision(config.models[config.training.model], config.training, state.num_processes)
    if mixed:
        say(state, "matrix products are computed in bfloat16, weights and adapter are kept as they are")
    _announce(job, plan)
    dev_loss_before = optimise(job, plan)
    if state.is_main_process:
        publish_adapter(job, plan, dev_loss_before, mixed)
    state.wait_for_everyone()


def _train_groups(job: TrainingJob, groups: Groups) -> None:
    """Train an adapter for every group of roles, one after the other, and publish them together."""
    from accelerate.utils import release_memory

    from training.adapter import is_made_of
    from training.role_adapters import GroupFolder, publish_groups, rows_of_roles, start_of_group
    from training.rows import rows_digest

    config, state = job.config, job.state
    for name, roles in groups.items():
        part, begin = GroupFolder.below(job.folder, name), start_of_group(job.start, name, roles)
        train_rows, dev_rows = rows_of_roles(config.training, roles, job.train_rows, job.dev_rows)
        if not len(train_rows):
            say(state, f"{name} ({', '.join(roles)}): all its rows are held out; the base model plays its roles")
            continue
        inputs = _training_inputs(config, rows_digest(train_rows), begin)
        with state.main_process_first():
            is_done = is_made_of(part.adapter, inputs)
            if not is_done and not is_made_of(part.training, inputs):
                write_json(part.training / "training.json", {"made_of": inputs})
        say(state, f"{name} ({', '.join(roles)}): {'is complete' if is_done else 'an adapter of its own'}")
        if not is_done:
            _train_adapter(
                replace(
                    job,
                    folder=part,
                    inputs=inputs,
                    skipped={},
                    train_rows=train_rows,
                    dev_rows=dev_rows,
                    start=begin,
                )
            )
            release_memory()  # the next one loads the base model again
    if state.is_main_process:
        publish_groups(job, groups)
    state.wait_for_everyone()


def sampling_policies(config: Config, folder: RoundFolder) -> set[str]:
    """'base' or digests of adapters: what sampled the round's trajectories."""
    from sampling.store import TrajectoryStore
    from training.kept import read_kept

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


def _training_inputs(config: Config, rows: str, start: Path | None) -> dict[str, Any]:
    """What the adapter is trained from, `rows` by their digest; training again with something else is refused."""
    from inference.adapters import checked_digest
    from inference.local.model import model_fingerprint

    return {
        "rows": rows,
        "base model": model_fingerprint(config.models[config.training.model]),
        "training settings": config.training.settings(),
        "seed": config.seed,
        "starting adapter": checked_digest(start) if start else None,
    }


def _announce(job: TrainingJob, plan: Schedule) -> None:
    from training.rows import loss_tokens, row_lengths
    from training.schedule import describe_adjustments

    rows, config, state = job.train_rows, job.config, job.state
    for line in describe_adjustments(len(rows), config.training, plan):
        say(state, line)
    say(
        state,
        f"{len(rows)} rows of {sum(row_lengths(rows))} tokens ({loss_tokens(rows)} learnt), "
        f"{len(job.dev_rows)} rows held out; {plan.steps} steps of {plan.batch} rows, learning rate up to "
        f"{config.training.learning_rate:g} after {plan.warmup} steps of warm-up",
    )
    if not len(job.dev_rows) and config.training.dev_fraction:
        say(state, "too few questions to hold any out: no dev loss, the last step's adapter is kept")


def optimise(job: TrainingJob, plan: Schedule) -> float | None:
    """Run or finish the optimisation, which leaves the evaluated adapters in the job's folder; the first dev loss."""
    import torch

    from inference.tokenizer import load_tokenizer
    from training.callback import TrainingCallback, held_out_losses, patience_is_over
    from training.checkpoints import EvaluatedAdapters, checkpoints, last_complete
    from training.lora import add_lora, load_model, start_from_adapter
    from training.objective_trainer import ObjectiveTrainer
    from training.packing import packing_of
    from training.processes import explain_lost_processes
    from training.rows import has_lessons
    from training.trainer import RowTrainer, trainer_config

    config, folder, state = job.config, job.folder.training, job.state
    training, model = config.training, config.models[config.training.model]
    packing = packing_of(job.train_rows, training)
    slots = packing.slots if packing else len(job.train_rows)
    arguments = trainer_config(training, model, folder, slots, config.seed, state.num_processes)
    # Resume from the last complete checkpoint, and delete those after it.
    found, messages = last_complete(folder)
    for message in messages:
        say(state, message)
    state.wait_for_everyone()
    if state.is_main_process:
        for step, path in checkpoints(folder):
            if found is None or step > found[0]:
                shutil.rmtree(path)

    watch = TrainingCallback(
        folder, training.eval_steps, has_dev=len(job.dev_rows) > 0, first=plan.first, patience=training.patience
    )
    stopped = found and patience_is_over(held_out_losses(watch.log, found[0]), training.patience)
    if not (found and (stopped or found[0] >= plan.steps) and EvaluatedAdapters(folder).best()):
        tokenizer = load_tokenizer(model.path, model.revision)
        if training.backend == "unsloth":
            from training.unsloth import load_unsloth

            learner = load_unsloth(model, training, config.seed)
        else:
            learner = add_lora(load_model(model), training.lora, config.seed)
        if training.liger:
            from training.liger import fuse_layers

            fuse_layers(learner)
        if job.start is not None:
            start_from_adapter(learner, job.start)
        kind = ObjectiveTrainer if has_lessons(job.train_rows) else RowTrainer
        rows = (job.train_rows, job.dev_rows)
        trainer = kind(learner, tokenizer, arguments, *rows, watch, found is not None, training)
        try:
            with explain_lost_processes(), watch.stop_request:
                trainer.train(resume_from_checkpoint=str(found[1]) if found else None)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"out of GPU memory ({str(error).splitlines()[0]}): lower training.micro_batch, set "
                "training.gradient_checkpointing=true, or lower training.max_length; then use a new run folder"
            ) from error
        finally:
            watch.close()
    return next((line["dev_loss"] for line in read_log(watch.log) if line["step"] == 0), None)


def say(state: PartialState, message: str) -> None:
    """Print a message once, however many processes there are."""
    if state.is_main_process:
        print(message, file=sys.stderr, flush=True)
