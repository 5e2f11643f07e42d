"""Steps, batch and warm-up, from the settings and the number of rows and processes. Without torch, so that a run can
check at its start what it trains with at its end."""

from __future__ import annotations

import math
from typing import NamedTuple

from ratchet.core.config import ModelConfig, TrainingConfig
from ratchet.core.errors import UserError

MIN_HELD_OUT = 5
"""The loss on fewer questions says nothing, and training misses the data."""


def held_out(questions: int, fraction: float) -> int:
    """The number of the kept questions that are held out."""
    number = round(fraction * questions)
    return number if number >= MIN_HELD_OUT else 0


def accumulation_steps(training: TrainingConfig, processes: int) -> int:
    """Micro-batches that make up training.batch_size on each device."""
    at_once = training.micro_batch * processes
    steps, rest = divmod(training.batch_size, at_once)
    if rest:
        fitting = [n for n in range(1, training.batch_size + 1) if training.batch_size % (n * processes) == 0]
        other = max(1, round(training.batch_size / at_once)) * at_once
        micro = f"training.micro_batch one of {', '.join(map(str, fitting))}, or " if fitting else ""
        raise UserError(
            f"training.batch_size={training.batch_size} cannot be divided into "
            f"training.micro_batch={training.micro_batch} rows on {processes} device{'s' * (processes > 1)}: "
            f"set {micro}training.batch_size={other}"
        )
    return steps


class Schedule(NamedTuple):
    """The optimisation's steps for a number of rows."""

    batch: int
    """Rows of one step."""
    accumulation: int
    """Micro-batches that each device adds up before a step."""
    per_epoch: int
    """Steps an epoch. The last batch of an epoch may be smaller; batches never span epochs."""
    steps: int
    warmup: int

    @property
    def first(self) -> int:
        """The first step that changes the adapter: a linear warm-up begins with a learning rate of 0."""
        return 2 if self.warmup else 1


def schedule(rows: int, training: TrainingConfig, processes: int) -> Schedule:
    """A batch is all rows at most, and warm-up a fifth of the steps: else few rows would hardly be learnt from."""
    micro_batches = math.ceil(rows / (training.micro_batch * processes))
    accumulated = min(accumulation_steps(training, processes), micro_batches)
    per_epoch = math.ceil(micro_batches / accumulated)
    passes = math.inf if training.epochs is None else math.ceil(training.epochs * per_epoch)
    steps = int(min(training.max_steps, passes))
    return Schedule(
        batch=min(training.batch_size, rows),
        accumulation=accumulated,
        per_epoch=per_epoch,
        steps=steps,
        warmup=min(training.warmup_steps, steps // 5),
    )


def describe_adjustments(rows: int, training: TrainingConfig, plan: Schedule) -> list[str]:
    """Lines for the user on where the schedule differs from the settings."""
    said = []
    if plan.batch < training.batch_size:
        said.append(
            f"training.batch_size={training.batch_size} is more than the {rows} rows: every step takes all of them"
        )
    if plan.warmup < training.warmup_steps:
        said.append(
            f"training.warmup_steps={training.warmup_steps} is more than a fifth of the {plan.steps} steps: "
            f"{plan.warmup} of them warm up"
        )
    return said


def check_model_is_open(name: str, model: ModelConfig) -> None:
    """Raises UserError where the model `name`, which is to be trained, is a closed one."""
    if model.engine == "chat-api":
        raise UserError(
            f"models.{name}: {model.path} is a closed model (engine: chat-api), which cannot be trained; "
            "train an open model, or only evaluate: ratchet evaluate --base-only"
        )
