"""From rows to batches: the order of rows, and padding."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.utils.data import Sampler

IGNORED = -100
"""The label that the loss skips, as everywhere in transformers."""


def row_lengths(table: pa.Table) -> list[int]:
    return list(pc.list_value_length(table["ids"]).to_pylist())


def loss_tokens(table: pa.Table) -> int:
    return int(pc.sum(pc.list_flatten(table["loss_mask"])).as_py() or 0)


def epoch_order(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[int]:
    """The order of rows in an epoch: shuffled, cut into batches, and within a batch the longest first.

    A batch is a uniform draw, as if nothing were sorted; its micro-batches hold rows of like length, so little is
    spent on padding, and devices that work side by side get like loads. The gradient is the batch's, and does not
    change.
    """
    order = list(range(len(lengths)))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    batches = (order[at : at + batch_size] for at in range(0, len(order), batch_size))
    return [row for batch in batches for row in sorted(batch, key=lambda row: -lengths[row])]


class EpochSampler(Sampler[int]):
    """Yields `epoch_order`. The epoch is asked for when iteration begins, so a resumed run needs no saved state.

    `together`: rows that all devices take at once. An epoch that is no multiple of it ends with the number of the blank
    row (`with_blank`); accelerate would fill the gap with rows that were trained on already.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, seed: int, epoch: Callable[[], int], together: int = 1
    ) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, epoch
        self.blanks = -len(lengths) % together

    def __len__(self) -> int:
        return len(self.lengths) + self.blanks

    def __iter__(self) -> Iterator[int]:
        order = epoch_order(self.lengths, self.batch_size, self.seed, self.epoch())
        return iter(order + [len(self.lengths)] * self.blanks)


def with_blank(table: pa.Table) -> pa.Table:
    """The rows and, after the last, one of a single token without loss."""
    blank = {"trajectory": "", "conversation": 0, "role": "", "ids": [0], "loss_mask": [0], "retokenised": False}
    return pa.concat_tables([table, pa.Table.from_pylist([blank], schema=table.schema)]).combine_chunks()


@dataclass(frozen=True)
class Collator:
    """Pads rows on the right: input_ids, attention_mask and labels, each (rows, longest row) of int64."""

    pad_id: int

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        shape = (len(rows), max(len(row["ids"]) for row in rows))
        ids = torch.full(shape, self.pad_id)
        attention = torch.zeros(shape, dtype=torch.long)
        labels = torch.full(shape, IGNORED)
        for number, row in enumerate(rows):
            length = len(row["ids"])
            own = torch.tensor(row["ids"], dtype=torch.long)
            learnt = torch.tensor(row["loss_mask"], dtype=torch.bool)
            ids[number, :length] = own
            attention[number, :length] = 1
            labels[number, :length] = own.where(learnt, IGNORED)
        return {"input_ids": ids, "attention_mask": attention, "labels": labels}
