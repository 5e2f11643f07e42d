"""The training of `train.py`, from top to bottom: rows, earlier work, model, LoRA, steps, the published adapter."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from accelerate import PartialState

from ratchet.core.config import Config, ModelConfig, load_members
from ratchet.core.errors import UserError
from ratchet.core.files import read_log, write_json
from ratchet.core.installed import code_version
from ratchet.core.plugins import short_name
from ratchet.core.runfolder import RoundFolder
from ratchet.inference.adapters import checked_digest
from ratchet.inference.local.model import model_fingerprint
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.questions.leakage import training_question_digests
from ratchet.questions.load import load_split
from ratchet.training.adapter import SETTINGS, data_licences, describe_base, is_made_of, publish, set_aside
from ratchet.training.batches import packing_of
from ratchet.training.callback import TrainingCallback
from ratchet.training.checkpoints import EvaluatedAdapters, checkpoints, last_complete
from ratchet.training.lessons import with_numbers
from ratchet.training.lora import add_lora, load_model, mixes_precision, on_cpu, start_from_adapter
from ratchet.training.objective_trainer import ObjectiveTrainer
from ratchet.training.objectives.objective import load_objective, recorded_settings
from ratchet.training.processes import PROCESS_TIMEOUT, explain_lost_processes
from ratchet.training.rows import (
    Rows,
    has_lessons,
    loss_tokens,
    prepare_rows,
    row_lengths,
    split_rows,
)
from ratchet.training.schedule import Schedule, describe_adjustments, schedule
from ratchet.training.trainer import RowTrainer, silence_libraries, trainer_config
from ratchet.training.unsloth import load_unsloth

Say = Callable[[str], None]
"""Prints a message once, however many processes there are."""


def train(
    config: Config,
    folder: RoundFolder,
    rows: Rows | None = None,
    start: Path | None = None,
    warnings: Sequence[str] = (),
) -> None:
    """Train the adapter of a round, or of one of its controls, together with the other processes of this training.

    `rows`: from the process that has prepared them, for which the others wait; `start`: the adapter that training
    continues; `warnings` are printed first.
    """
    training, model = config.training, config.models[config.training.model]
    state = _start_processes(model)
    silence_libraries()

    def say(message: str) -> None:
        if state.is_main_process:
            print(message, file=sys.stderr, flush=True)

    for warning in warnings:
        say(warning)
    objective = load_objective(training)
    # Where training leaves its adapter: the round's, or one that `ratchet choose` has to choose first.
    target = folder.adapter if training.choose_by == "held_out_loss" else folder.candidate
    # The main process looks for earlier work; the others then read the same.
    with state.main_process_first():
        rows = rows or prepare_rows(config, folder)
        inputs: dict[str, Any] = {
            "rows": rows.digest,
            "base model": model_fingerprint(model),
            SETTINGS: recorded_settings(objective),
            "seed": config.seed,
            "starting adapter": checked_digest(start) if start else None,
        }
        is_done = is_made_of(target, inputs)
        if not is_done:
            set_aside(folder, inputs)
            if not is_made_of(folder.training, inputs):
                write_json(folder.training / "training.json", {"made_of": inputs})
    if is_done:
        say(f"{target} is complete: trained on the same rows, model and settings")
        return
    table = with_numbers(rows.table) if has_lessons(rows.table) else rows.table
    if has_lessons(table) and training.backend == "unsloth":
        raise UserError("training.backend: rows with weights need logits, which unsloth does not give; set it to peft")
    if objective.needs_reference:
        _name_reference(rows, inputs["starting adapter"] or "base", say)
    learnt, dev = split_rows(table, rows.questions, training.dev_fraction, config.seed)
    packing = packing_of(learnt, objective)
    slots = packing.slots if packing else len(learnt)
    plan = schedule(slots, training, state.num_processes)
    mixed = mixes_precision(model, training, state.num_processes)
    if mixed:
        say("matrix products are computed in bfloat16, weights and adapter are kept as they are")
    for line in describe_adjustments(len(learnt), training, plan):
        say(line)
    say(
        f"{len(learnt)} rows of {sum(row_lengths(learnt))} tokens ({loss_tokens(learnt)} learnt), {len(dev)} rows held "
        f"out; {plan.steps} steps of {plan.batch} rows, learning rate up to {training.learning_rate:g} after "
        f"{plan.warmup} steps of warm-up"
    )
    if not len(dev) and training.dev_fraction:
        say("too few questions to hold any out: no dev loss, the last step's adapter is kept")
    dev_loss_before = optimise(config, folder, (learnt, dev), slots, plan, start, state, say)
    if state.is_main_process:
        facts = {
            "made_of": inputs,
            "steps": plan.steps,
            "batch": plan.batch,
            "warmup_steps": plan.warmup,
            "dev_loss_before": dev_loss_before,
            "mixed_precision": mixed,
            "rows": {
                "train": len(learnt),
                "dev": len(dev),
                "tokens": sum(row_lengths(learnt)),
                "loss_tokens": loss_tokens(learnt),
                "roles": Counter(learnt["role"].to_pylist()),
                "left_out": rows.skipped,
            },
        }
        _publish_best(config, folder, target, facts, say)
    state.wait_for_everyone()


def _start_processes(model: ModelConfig) -> PartialState:
    if not on_cpu(model) and torch.cuda.device_count() > 1 and "WORLD_SIZE" not in os.environ:
        raise UserError(
            f"{torch.cuda.device_count()} GPUs are visible to one process: use `accelerate launch train.py ...` to "
            "train on all of them, or CUDA_VISIBLE_DEVICES=0 to use one"
        )
    return PartialState(cpu=on_cpu(model), timeout=PROCESS_TIMEOUT)


def _name_reference(rows: Rows, start: str, say: Say) -> None:
    """Print a line where the reference model is not the one that sampled the trajectories."""
    policies = {part.store.system_and_policy()[1] for part in rows.kept}
    if others := sorted(policy for policy in policies if policy and policy != start):
        say(
            f"the trajectories were sampled by {' and '.join(others)}, and training starts from {start}: it is the "
            "reference model"
        )


def optimise(
    config: Config,
    folder: RoundFolder,
    rows: tuple[pa.Table, pa.Table],
    slots: int,
    plan: Schedule,
    start: Path | None,
    state: PartialState,
    say: Say,
) -> float | None:
    """Run or finish the optimisation, which leaves the evaluated adapters in the round's folder; the first dev loss.

    `rows`: (those that are learnt, those that are held out); `slots`: rows of an epoch, blank ones included.
    """
    training, model, seed, out = config.training, config.models[config.training.model], config.seed, folder.training
    arguments = trainer_config(training, model, out, slots, seed, state.num_processes)
    # Resume from the last complete checkpoint, and delete those after it.
    resumed, messages = last_complete(out)
    for message in messages:
        say(message)
    state.wait_for_everyone()
    if state.is_main_process:
        for step, path in checkpoints(out):
            if resumed is None or step > resumed[0]:
                shutil.rmtree(path)

    watch = TrainingCallback(out, training.eval_steps, has_dev=len(rows[1]) > 0, first=plan.first)
    if not (resumed and resumed[0] >= plan.steps and EvaluatedAdapters(out).best()):
        tokenizer = load_tokenizer(model.path, model.revision)
        if training.backend == "unsloth":
            learner = load_unsloth(model, training, seed)
        else:
            learner = add_lora(load_model(model), training.lora, seed)
        if start is not None:
            start_from_adapter(learner, start)
        kind = ObjectiveTrainer if has_lessons(rows[0]) else RowTrainer
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


def _publish_best(config: Config, folder: RoundFolder, target: Path, facts: dict[str, Any], say: Say) -> None:
    best = EvaluatedAdapters(folder.training).best()
    assert best is not None, "training ended without an adapter"
    model, members, control = config.models[config.training.model], load_members(config), folder.trained_control
    facts |= best[1] | {
        "base_model": model.path,
        "base": describe_base(model, facts["made_of"]["base model"]),
        "data_licences": data_licences(member.questions.train for member in members.values()),
        "revision": model.revision,
        "run": config.run,
        "round": folder.number,
        "systems": sorted({short_name(member.system.name) for member in members.values()}),
        "code": code_version(),
        "training": facts["made_of"][SETTINGS],
        **({"control": control} if control else {}),
    }
    splits = {name: load_split(member.questions.train, member.seed) for name, member in members.items()}
    publish(best[0], target, facts, training_question_digests(splits))
    before, after = facts["dev_loss_before"], facts["dev_loss"]
    loss = f", dev loss {before:.4f} -> {after:.4f}" if facts["rows"]["dev"] else ""
    message = f"{target}: the adapter after step {facts['step']} of {facts['steps']}{loss}"
    if target != folder.adapter:
        message += "; by the loss on held-out kept actions, a cheap stand-in: `ratchet choose` decides on dev"
    say(message)
