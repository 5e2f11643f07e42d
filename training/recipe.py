"""What `train.py` does, from top to bottom: rows, earlier work, model, LoRA, steps, the published adapter."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import PartialState

from ratchet.core.config import ModelConfig
from ratchet.core.errors import UserError
from ratchet.core.files import read_log, write_json
from ratchet.inference.adapters import checked_digest
from ratchet.inference.local.model import model_fingerprint
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.training.adapter import SETTINGS, is_made_of, set_aside
from ratchet.training.callback import TrainingCallback
from ratchet.training.checkpoints import EvaluatedAdapters, checkpoints, last_complete
from ratchet.training.kept import read_kept
from ratchet.training.lessons import with_numbers
from ratchet.training.lora import add_lora, load_model, mixes_precision, on_cpu, start_from_adapter
from ratchet.training.objective_trainer import ObjectiveTrainer
from ratchet.training.objectives.objective import load_objective, recorded_settings
from ratchet.training.packing import packing_of
from ratchet.training.processes import PROCESS_TIMEOUT, explain_lost_processes
from ratchet.training.publication import TrainingJob, publish_adapter
from ratchet.training.rows import has_lessons, loss_tokens, prepare_rows, row_lengths, split_rows
from ratchet.training.schedule import Schedule, describe_adjustments, schedule
from ratchet.training.task import TrainingTask
from ratchet.training.trainer import RowTrainer, silence_libraries, trainer_config
from ratchet.training.unsloth import load_unsloth


def train(task: TrainingTask, warnings: Sequence[str] = ()) -> None:
    """Train what the task says, together with the other processes of this training; `warnings` are printed first."""
    training, folder = task.training, task.folder
    state = _start_processes(task.model)
    silence_libraries()
    if state.is_main_process:
        for warning in warnings:
            print(warning, file=sys.stderr, flush=True)

    # The main process builds the rows and looks for earlier work; the others then read the same.
    with state.main_process_first():
        rows, questions = prepare_rows(task.rounds, folder.rows, training)
        inputs = _training_inputs(task, rows.digest)
        is_done = is_made_of(task.target, inputs)
        if not is_done:
            set_aside(folder, inputs)
            if not is_made_of(folder.training, inputs):
                write_json(folder.training / "training.json", {"made_of": inputs})
    table = with_numbers(rows.table) if has_lessons(rows.table) else rows.table
    train_rows, dev_rows = split_rows(table, questions, training.dev_fraction, task.config.seed)
    job = TrainingJob(task, inputs, rows.skipped, train_rows, dev_rows, state)
    if is_done:
        job.say(f"{task.target} is complete: trained on the same rows, model and settings")
        return
    if has_lessons(table) and training.backend == "unsloth":
        raise UserError("training.backend: rows with weights need logits, which unsloth does not give; set it to peft")
    if load_objective(training).needs_reference:
        _name_reference(job)
    _train_adapter(job)


def _start_processes(model: ModelConfig) -> PartialState:
    """Join the other processes of this training, if there are any."""
    if not on_cpu(model) and torch.cuda.device_count() > 1 and "WORLD_SIZE" not in os.environ:
        raise UserError(
            f"{torch.cuda.device_count()} GPUs are visible to one process: use `accelerate launch train.py ...` to "
            "train on all of them, or CUDA_VISIBLE_DEVICES=0 to use one"
        )
    return PartialState(cpu=on_cpu(model), timeout=PROCESS_TIMEOUT)


def _training_inputs(task: TrainingTask, rows: str) -> dict[str, Any]:
    """What the adapter is trained from, `rows` by their digest; what was trained from something else is set aside."""
    return {
        "rows": rows,
        "base model": model_fingerprint(task.model),
        SETTINGS: recorded_settings(load_objective(task.training)),
        "seed": task.config.seed,
        "starting adapter": checked_digest(task.start) if task.start else None,
    }


def _name_reference(job: TrainingJob) -> None:
    """Say so where the reference model is not what sampled the trajectories."""
    policies = {kept.store.system_and_policy()[1] for kept in read_kept(job.task.rounds)}
    start = job.inputs["starting adapter"] or "base"
    if others := sorted(policy for policy in policies if policy and policy != start):
        job.say(
            f"the trajectories were sampled by {' and '.join(others)}, and training starts from {start}: it is the "
            "reference model"
        )


def _train_adapter(job: TrainingJob) -> None:
    """Train one adapter on its rows, and publish it."""
    training, state, rows = job.task.training, job.state, job.train_rows
    packing = packing_of(rows, load_objective(training))
    slots = packing.slots if packing else len(rows)
    plan = schedule(slots, training, state.num_processes)
    mixed = mixes_precision(job.task.model, training, state.num_processes)
    if mixed:
        job.say("matrix products are computed in bfloat16, weights and adapter are kept as they are")
    for line in describe_adjustments(len(rows), training, plan):
        job.say(line)
    job.say(
        f"{len(rows)} rows of {sum(row_lengths(rows))} tokens ({loss_tokens(rows)} learnt), "
        f"{len(job.dev_rows)} rows held out; {plan.steps} steps of {plan.batch} rows, learning rate up to "
        f"{training.learning_rate:g} after {plan.warmup} steps of warm-up",
    )
    if not len(job.dev_rows) and training.dev_fraction:
        job.say("too few questions to hold any out: no dev loss, the last step's adapter is kept")
    dev_loss_before = optimise(job, slots, plan)
    if state.is_main_process:
        publish_adapter(job, plan, dev_loss_before, mixed)
    state.wait_for_everyone()


def optimise(job: TrainingJob, slots: int, plan: Schedule) -> float | None:
    """Run or finish the optimisation, which leaves the evaluated adapters in the job's folder; the first dev loss.

    `slots`: rows of an epoch, blank ones included.
    """
    training, model, seed = job.task.training, job.task.model, job.task.config.seed
    folder, state = job.task.folder.training, job.state
    arguments = trainer_config(training, model, folder, slots, seed, state.num_processes)
    # Resume from the last complete checkpoint, and delete those after it.
    resumed, messages = last_complete(folder)
    for message in messages:
        job.say(message)
    state.wait_for_everyone()
    if state.is_main_process:
        for step, path in checkpoints(folder):
            if resumed is None or step > resumed[0]:
                shutil.rmtree(path)

    watch = TrainingCallback(folder, training.eval_steps, has_dev=len(job.dev_rows) > 0, first=plan.first)
    if not (resumed and resumed[0] >= plan.steps and EvaluatedAdapters(folder).best()):
        tokenizer = load_tokenizer(model.path, model.revision)
        if training.backend == "unsloth":
            learner = load_unsloth(model, training, seed)
        else:
            learner = add_lora(load_model(model), training.lora, seed)
        if job.task.start is not None:
            start_from_adapter(learner, job.task.start)
        kind = ObjectiveTrainer if has_lessons(job.train_rows) else RowTrainer
        rows = (job.train_rows, job.dev_rows)
        trainer = kind(learner, tokenizer, arguments, *rows, watch, resumed is not None, training)
        try:
            with explain_lost_processes(), watch.stop_request:
                trainer.train(resume_from_checkpoint=str(resumed[1]) if resumed else None)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"out of GPU memory ({str(error).splitlines()[0]}): lower training.micro_batch, set "
                "training.gradient_checkpointing=true, or lower training.max_length; then use a new run folder"
            ) from error
        finally:
            watch.close()
    return next((line["dev_loss"] for line in read_log(watch.log) if line["step"] == 0), None)
