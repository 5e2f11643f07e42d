"""The training stage: a round's kept trajectories to a LoRA adapter.

    accelerate launch train.py --config configs/demo.yaml

Plain `python train.py` does the same on one device. `--from DIR` trains an adapter on, as later rounds do.

Interrupted at any point, the same command goes on from the last whole checkpoint, with the same loss curve. When the
adapter is there and was made of the same rows, model and settings, it does nothing and says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from questions.guard import guard, training_questions
from ratchet.command import config_of, config_parser, run_command
from ratchet.config import Config, load_members
from ratchet.errors import UserError
from ratchet.files import write_json
from ratchet.lease import Lease
from ratchet.runfolder import RoundFolder, RunFolder, open_run

if TYPE_CHECKING:
    from training.schedule import Schedule

PR_SET_PDEATHSIG = 1


def end_with_launcher() -> None:
    """`accelerate launch` of one process does not pass SIGTERM on; so let the system send us one when it has ended."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None and any(name.startswith("ACCELERATE_") for name in os.environ):
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main(words: Sequence[str] | None = None, prog: str = "train.py") -> None:
    end_with_launcher()
    parser = config_parser(prog, "Train a LoRA adapter on a round's kept trajectories.")
    parser.add_argument("--round", type=int, default=1, help="the round to train (default 1)")
    parser.add_argument("--from", dest="start", type=Path, metavar="DIR", help="train this adapter on, not a new one")
    arguments = parser.parse_args(words)
    config = config_of(arguments)
    if config.training.backend == "unsloth":  # before anything imports transformers, which it patches
        from training.unsloth import import_unsloth

        import_unsloth()
    train(config, arguments.round, arguments.start)


def train(config: Config, number: int, start: Path | None = None) -> None:
    """Train round `number`, from the adapter in folder `start` if there is one; see the top of this file."""
    from training.prepare import kept_of

    folder = RunFolder(config.folder).round(number)
    kept_of(config, folder)  # says what is missing before torch is loaded
    # One process of several is the writer; it has the lease before it looks at what there is.
    is_writer = os.environ.get("RANK", "0") == "0"
    with Lease(folder.path / ".training.lease", str(folder.training)) if is_writer else nullcontext():
        _train(config, number, start)
    from training.processes import take_leave  # late: it imports torch

    take_leave()


def _train(config: Config, number: int, start: Path | None) -> None:
    from training.prepare import prepare_rows

    warnings = [warning for member in load_members(config).values() for warning in guard(member)]

    import torch
    from accelerate import PartialState

    from training.lora import on_cpu
    from training.processes import PATIENCE

    model = config.models[config.training.model]
    if not on_cpu(model) and torch.cuda.device_count() > 1 and "WORLD_SIZE" not in os.environ:
        raise UserError(
            f"{torch.cuda.device_count()} GPUs are visible to one process: use `accelerate launch train.py ...` to "
            "train on all of them, or CUDA_VISIBLE_DEVICES=0 to use one"
        )
    state = PartialState(cpu=on_cpu(model), timeout=PATIENCE)

    from inference.adapters import read_adapter
    from inference.local.model import model_fingerprint
    from training.adapter import check_same, publish
    from training.checkpoints import BestAdapter
    from training.data import loss_tokens, row_lengths
    from training.rows import split_rows
    from training.schedule import adjustments, schedule
    from training.trainer import quiet

    quiet()
    for warning in warnings:
        say(state, warning)
    with state.main_process_first():
        run = open_run(config)
        folder = run.round(number)
        rows, questions = prepare_rows(config, folder)
        made_of = {
            "rows": rows.digest,
            "base model": model_fingerprint(model),
            "training settings": config.training.model_dump(mode="json", exclude={"wandb"}),
            "seed": config.seed,
            "starting adapter": read_adapter(start).digest if start else None,
        }
        if check_same(folder.adapter, made_of):
            say(state, f"{folder.adapter} is complete: trained on the same rows, model and settings")
            return
        if not check_same(folder.training, made_of):
            write_json(folder.training / "training.json", {"made_of": made_of})

    train_rows, dev_rows = split_rows(rows.table, questions, config.training.dev_fraction, config.seed)
    tokens = sum(row_lengths(train_rows))
    made = schedule(len(train_rows), config.training, state.num_processes)
    for line in adjustments(len(train_rows), config.training, made):
        say(state, line)
    say(
        state,
        f"{len(train_rows)} rows of {tokens} tokens ({loss_tokens(train_rows)} learnt), {len(dev_rows)} rows held out; "
        f"{made.steps} steps of {made.batch} rows, learning rate up to {config.training.learning_rate:g} after "
        f"{made.warmup} steps of warm-up",
    )
    if not len(dev_rows) and config.training.dev_fraction:
        say(state, "too few questions to hold any out: no dev loss, the last step's adapter is kept")
    before = optimise(config, folder, train_rows, dev_rows, made, state, start)

    if state.is_main_process:
        best = BestAdapter(folder.training).current()
        assert best is not None, "training ended without an adapter"
        facts = {
            "made_of": made_of,
            "base_model": model.path,
            "revision": model.revision,
            "run": config.run,
            "round": number,
            "systems": sorted({member.system.name for member in load_members(config).values()}),
            "code": json.loads(run.manifest.read_bytes())["code"],
            "training": made_of["training settings"],
            "steps": made.steps,
            "batch": made.batch,
            "warmup_steps": made.warmup,
            **best[1],
            "dev_loss_before": before,
            "rows": {
                "train": len(train_rows),
                "dev": len(dev_rows),
                "tokens": tokens,
                "loss_tokens": loss_tokens(train_rows),
                "roles": Counter(train_rows["role"].to_pylist()),
                "left_out": rows.left_out,
                "retokenised": sum(train_rows["retokenised"].to_pylist()),
            },
        }
        publish(best[0], folder.adapter, facts, training_questions(config))
        loss = f", dev loss {before:.4f} -> {best[1]['dev_loss']:.4f}" if len(dev_rows) else ""
        say(state, f"{folder.adapter}: the adapter after step {best[1]['step']} of {made.steps}{loss}")
    state.wait_for_everyone()


def optimise(
    config: Config,
    folder: RoundFolder,
    train_rows: Any,
    dev_rows: Any,
    made: Schedule,
    state: Any,
    start: Path | None,
) -> float | None:
    """Run or finish the optimisation; the best adapter is then in folder.training. Returns the first dev loss."""
    import torch

    from inference.chat import load_tokenizer
    from training.checkpoints import BestAdapter, checkpoints, last_whole
    from training.lora import add_lora, load_model, take_weights
    from training.processes import lost_processes
    from training.trainer import RowTrainer, trainer_config
    from training.watch import Watch, read_log

    training, model = config.training, config.models[config.training.model]
    arguments = trainer_config(training, model, folder.training, len(train_rows), config.seed, state.num_processes)
    found, messages = last_whole(folder.training)
    for message in messages:
        say(state, message)
    state.wait_for_everyone()
    if state.is_main_process:
        for step, path in checkpoints(folder.training):
            if found is None or step > found[0]:
                shutil.rmtree(path)

    watch = Watch(folder.training, training.eval_steps, has_dev=len(dev_rows) > 0, first=made.first)
    if not (found and found[0] >= made.steps and BestAdapter(folder.training).current()):
        tokenizer = load_tokenizer(model.path, model.revision)
        if training.backend == "unsloth":
            from training.unsloth import load_unsloth

            learner = load_unsloth(model, training, config.seed)
        else:
            learner = add_lora(load_model(model), training.lora, config.seed)
        if start:
            take_weights(learner, start)
        trainer = RowTrainer(learner, tokenizer, arguments, train_rows, dev_rows, watch, resumed=found is not None)
        try:
            with lost_processes():
                trainer.train(resume_from_checkpoint=str(found[1]) if found else None)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"out of GPU memory ({str(error).splitlines()[0]}): lower training.micro_batch, set "
                "training.gradient_checkpointing=true, or lower training.max_length; then use a new run folder"
            ) from error
        finally:
            watch.close()
    return next((line["dev_loss"] for line in read_log(watch.log) if line["step"] == 0), None)


def say(state: Any, message: str) -> None:
    if state.is_main_process:
        print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_command(main)
