"""The records of a training: its log, and the tokens with loss of the trajectories on the page."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ratchet.core.files import read_segment
from ratchet.training.rows import open_rows, split_rows


class LogLine(BaseModel):
    """One line of training/log.jsonl."""

    model_config = ConfigDict(extra="ignore")
    step: int
    loss: float | None = None
    dev_loss: float | None = None


@dataclass(frozen=True)
class TrainedRow:
    """One token row of a trajectory that is shown."""

    mask: bytes
    """1 for a token with loss, by position in its conversation."""
    held_out: bool
    """Its question was held out for the dev loss: it was not trained on."""

    def learns(self, start: int, end: int) -> bool:
        """Whether all tokens start:end have loss. A row of a single action ends with it."""
        return end <= len(self.mask) and all(self.mask[start:end])

    def merged(self, other: TrainedRow) -> TrainedRow:
        """Both rows of one conversation, where its actions have rows of their own."""
        pairs = zip_longest(self.mask, other.mask, fillvalue=0)
        return TrainedRow(bytes(own | others for own, others in pairs), self.held_out)


TrainedRows = dict[tuple[str, int], TrainedRow]
"""By (trajectory key, conversation)."""


def read_training_log(path: Path) -> tuple[LogLine, ...]:
    """One line a step: loss and dev loss stand on lines of their own. Values that are not finite are skipped."""
    by_step: dict[int, dict[str, Any]] = {}
    for line in read_segment(path, LogLine):
        given = line.model_dump(exclude_none=True)
        by_step.setdefault(line.step, {}).update({name: v for name, v in given.items() if math.isfinite(v)})
    return tuple(LogLine(**by_step[step]) for step in sorted(by_step))


def count_rows(path: Path) -> int:
    """The number of token rows; 0 where there is no file. UserError for one that cannot be read."""
    with open_rows(path) as file:
        return file.metadata.num_rows if file else 0


def read_trained(
    path: Path, shown: Container[str], question_of: Mapping[str, str], dev_fraction: float, seed: int
) -> TrainedRows:
    """The rows of the trajectories whose keys are in `shown`.

    `question_of`: by trajectory key, the question; without all of them, no row counts as held out. `dev_fraction` and
    `seed`: those of the training, which say which questions it held out.
    """
    trained: TrainedRows = {}
    with open_rows(path) as file:
        if file is None:
            return {}
        keys = file.read(columns=["trajectory"])
        held_out: set[str] = set()
        if all(key in question_of for key in keys["trajectory"].to_pylist()):
            _, dev = split_rows(keys, question_of, dev_fraction, seed)
            held_out = set(dev["trajectory"].to_pylist())
        for batch in file.iter_batches(columns=["trajectory", "conversation", "loss_mask"], batch_size=64):
            key_of, conversation_of, masks = batch.columns
            for i, key in enumerate(key_of.to_pylist()):
                if key in shown:
                    row = TrainedRow(bytes(masks[i].as_py()), key in held_out)
                    place = key, conversation_of[i].as_py()
                    trained[place] = trained[place].merged(row) if place in trained else row
    return trained
