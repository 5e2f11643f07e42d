"""Rows as one micro-batch of tensors: padded to the longest row, or one after the other without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ratchet.training.prompt_tree import IGNORED, as_tree

MODEL_INPUTS = (
    "input_ids", "attention_mask", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
    "segments",
)  # fmt: skip
"""What a model takes of a micro-batch."""


def concatenate(padded: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """A collator's rows one after the other, without padding: input_ids, labels and position_ids, each (1, tokens), and
    what transformers' attention functions take, `cu_seq_lens_q` (rows + 1) with where rows begin and `max_length_q`."""
    is_token = padded["attention_mask"].bool()
    lengths = is_token.sum(1)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).int()
    longest = int(lengths.max())
    positions = torch.arange(is_token.shape[1]).expand(is_token.shape)
    return {
        **{name: values for name, values in padded.items() if name != "attention_mask"},
        "input_ids": padded["input_ids"][is_token][None],
        "labels": padded["labels"][is_token][None],
        "position_ids": positions[is_token][None],
        **{"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": longest, "max_length_k": longest},
    }


@dataclass(frozen=True)
class Collator:
    """Pads rows on the right: input_ids, attention_mask and labels, each (rows, longest row) of int64; or concatenates
    them (`concatenate`), or shares their prompts (`prompt_tree.as_tree`). `row_lengths` and `row_labels`, each (rows,),
    are the tokens and labels of each row. (A row's first token is no label: `training.rows.loss_mask`.)"""

    pad_id: int
    padding_free: bool = False
    share_prompts: bool = False

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        counts = {
            "row_lengths": torch.tensor([len(row["ids"]) for row in rows]),
            "row_labels": torch.tensor([sum(row["loss_mask"]) for row in rows]),
        }
        if self.share_prompts:
            return as_tree(rows) | counts
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
        padded = {"input_ids": ids, "attention_mask": attention, "labels": labels}
        return (concatenate(padded) if self.padding_free else padded) | counts
