"""One adapter that is trained: what it is made of, and its publication with the facts behind it.

Nothing here needs torch before something is published.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from questions.leakage import training_question_digests
from ratchet.config import Config, load_members
from ratchet.files import read_json_file
from ratchet.plugins import short_name
from ratchet.runfolder import RoundFolder, RunFolder

if TYPE_CHECKING:
    import pyarrow as pa
    from accelerate import PartialState

    from training.schedule import Schedule


@dataclass(frozen=True)
class TrainingJob:
    """One adapter to train, or those of all groups of roles together."""

    config: Config
    run: RunFolder
    folder: RoundFolder
    """Where its checkpoints and its adapter go."""
    inputs: dict[str, Any]
    """What it is made of; training again with something else is refused."""
    skipped: dict[str, int]
    """Conversations without a row, by reason."""
    train_rows: pa.Table
    dev_rows: pa.Table
    start: Path | None
    """The adapter that training continues."""
    state: PartialState


def published_folder(config: Config, folder: RoundFolder) -> Path:
    """Where training leaves its adapter: the round's, or one that `python -m rounds choose` has to choose first."""
    return folder.adapter if config.training.choose_by == "held_out_loss" else folder.candidate


def publish_adapter(job: TrainingJob, plan: Schedule, dev_loss_before: float | None, mixed_precision: bool) -> None:
    """Put the adapter with the lowest held-out loss in its folder, with the facts behind it."""
    from training.adapter import publish
    from training.checkpoints import EvaluatedAdapters
    from training.rows import loss_tokens, row_lengths

    best = EvaluatedAdapters(job.folder.training).best()
    assert best is not None, "training ended without an adapter"
    facts = shared_facts(job) | {
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
            "retokenised": sum(job.train_rows["retokenised"].to_pylist()),
        },
    }
    target = published_folder(job.config, job.folder)
    publish(best[0], target, facts, training_question_digests(job.config))
    loss = f", dev loss {dev_loss_before:.4f} -> {best[1]['dev_loss']:.4f}" if len(job.dev_rows) else ""
    message = f"{target}: the adapter after step {best[1]['step']} of {plan.steps}{loss}"
    if target != job.folder.adapter:
        message += "; by the loss on held-out kept actions, a cheap stand-in: `python -m rounds choose` decides on dev"
    print(message, file=sys.stderr, flush=True)


def shared_facts(job: TrainingJob) -> dict[str, Any]:
    """The facts of an adapter that its steps do not change."""
    from training.card import data_licences, describe_base, example_prompt

    model = job.config.models[job.config.training.model]
    return {
        "made_of": job.inputs,
        "base_model": model.path,
        "base": describe_base(model, job.inputs["base model"]),
        "prompt": example_prompt(job.config),
        "data_licences": data_licences(job.config),
        "revision": model.revision,
        "run": job.config.run,
        "round": job.folder.number,
        "systems": sorted({short_name(member.system.name) for member in load_members(job.config).values()}),
        "code": read_json_file(job.run.manifest)["code"],
        "training": job.inputs["training settings"],
        **({"control": job.folder.trained_control} if job.folder.trained_control else {}),
    }
