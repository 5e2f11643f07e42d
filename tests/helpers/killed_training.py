"""Trainings in the test's own process that end in the middle of a step, and leave what a kill leaves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ratchet.training.trainer import RowTrainer


class KilledTraining(BaseException):
    """Nothing but the end of `killed_after` catches it."""


@contextmanager
def killed_after(steps: int, trainings: int = 0) -> Iterator[None]:
    """End the block in the step after so many of a training, `trainings` of which come to their end before."""
    train_micro_batch = RowTrainer.training_step
    trainers: list[RowTrainer] = []

    def end(self: RowTrainer, *arguments: Any, **named: Any) -> Any:
        if self not in trainers:
            trainers.append(self)
        if self.state.global_step == steps and len(trainers) > trainings:
            raise KilledTraining
        return train_micro_batch(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowTrainer, "training_step", end)
        try:
            yield
        except KilledTraining:
            return
    raise AssertionError(f"training came to its end within {steps} steps")
