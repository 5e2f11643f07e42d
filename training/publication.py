"""One adapter that is trained: what it is made of, and its publication with the facts behind it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from accelerate import PartialState

from ratchet.core.config import load_members
from ratchet.core.installed import code_version
from ratchet.core.plugins import short_name
from ratchet.questions.leakage import training_question_digests
from ratchet.questions.load import load_split
from ratchet.training.adapter import SETTINGS, publish
from ratchet.training.card import data_licences, describe_base
from ratchet.training.checkpoints import EvaluatedAdapters
from ratchet.training.rows import loss_tokens, row_lengths
from ratchet.training.schedule import Schedule
from ratchet.training.task import TrainingTask


@dataclass(frozen=True)
class TrainingJob:
    """One adapter to train."""

    task: TrainingTask
    inputs: dict[str, Any]
    """What it is made of; what was trained from something else is set aside."""
    skipped: dict[str, int]
    """Conversations without a row, by reason."""
    train_rows: pa.Table
    dev_rows: pa.Table
    state: PartialState

    def say(self, message: str) -> None:
        """Print a message once, however many processes there are."""
        if self.state.is_main_process:
            print(message, file=sys.stderr, flush=True)


def publish_adapter(job: TrainingJob, plan: Schedule, dev_loss_before: float | None, mixed_precision: bool) -> None:
    """Put the adapter with the lowest held-out loss in its folder, with the facts behind it."""
    task, config = job.task, job.task.config
    best = EvaluatedAdapters(task.folder.training).best()
    assert best is not None, "training ended without an adapter"
    model, members, control = task.model, load_members(config), task.folder.trained_control
    facts = {
        "made_of": job.inputs,
        "base_model": model.path,
        "base": describe_base(model, job.inputs["base model"]),
        "data_licences": data_licences(member.questions.train for member in members.values()),
        "revision": model.revision,
        "run": config.run,
        "round": task.folder.number,
        "systems": sorted({short_name(member.system.name) for member in members.values()}),
        "code": code_version(),
        "training": job.inputs[SETTINGS],
        **({"control": control} if control else {}),
        "steps": plan.steps,
        "batch": plan.batch,
        "warmup_steps": plan.warmup,
        **best[1],
        "dev_loss_before": dev_loss_before,
        "mixed_precision": mixed_precision,
        "rows": {
            "train": len(job.train_rows),
            "dev": len(job.dev_rows),
            "tokens": sum(row_lengths(job.train_rows)),
            "loss_tokens": loss_tokens(job.train_rows),
            "roles": Counter(job.train_rows["role"].to_pylist()),
            "left_out": job.skipped,
        },
    }
    splits = {name: load_split(member.questions.train, member.seed) for name, member in members.items()}
    publish(best[0], task.target, facts, training_question_digests(splits))
    loss = f", dev loss {dev_loss_before:.4f} -> {best[1]['dev_loss']:.4f}" if len(job.dev_rows) else ""
    message = f"{task.target}: the adapter after step {best[1]['step']} of {plan.steps}{loss}"
    if task.target != task.folder.adapter:
        message += "; by the loss on held-out kept actions, a cheap stand-in: `ratchet choose` decides on dev"
    job.say(message)
