"""Rows as one sequence that has the equal beginnings of their prompts once.

Rows of one role begin with the same instructions and worked examples, and rows of one question with the same documents.
The sequence is a tree of segments: each attends to itself and to the segments above it, so every token has the
activations that it has in its own row, and what is shared gets the sum of the gradients of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

IGNORED = -100
"""The label that the loss skips, as everywhere in transformers."""


class Segment(NamedTuple):
    """The tokens from `start` to `end` of `row` and, where other segments are below it, of other rows."""

    row: int
    start: int
    end: int
    parent: int
    """The segment before it in its rows; -1 for the first."""


def prompt_tree(rows: Sequence[Sequence[int]], prompts: Sequence[int]) -> list[Segment]:
    """The segments of these rows, parents before children; the first `prompts[i]` tokens of row i may be shared."""
    segments: list[Segment] = []

    def add(group: list[int], start: int, parent: int) -> None:
        first = group[0]
        if len(group) == 1:
            segments.append(Segment(first, start, len(rows[first]), parent))
            return
        end, limit = start, min(prompts[row] for row in group)
        while end < limit and all(rows[row][end] == rows[first][end] for row in group):
            end += 1
        if end > start:
            segments.append(Segment(first, start, end, parent))
            parent = len(segments) - 1
        below: dict[tuple[int, int], list[int]] = {}
        for row in group:
            next_token = (rows[row][end], -1) if prompts[row] > end else (-1, row)
            below.setdefault(next_token, []).append(row)
        for part in below.values():
            add(part, end, parent)

    if rows:
        add(list(range(len(rows))), 0, -1)
    return segments


def as_tree(rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """A micro-batch: input_ids, labels and position_ids, each (1, tokens), and `segments` (segments, 3), with the start
    and end of each in the sequence and its parent.

    What predicts a row's first label is never shared, since the next token of the sequence is its label.
    """
    tokens = [row["ids"] for row in rows]
    segments = prompt_tree(tokens, [max(0, _first_label(row["loss_mask"]) - 1) for row in rows])
    ids: list[int] = []
    labels: list[int] = []
    positions: list[int] = []
    places: list[tuple[int, int, int]] = []
    for row, start, end, parent in segments:
        own, mask = tokens[row][start:end], rows[row]["loss_mask"][start:end]
        places.append((len(ids), len(ids) + len(own), parent))
        ids += own
        labels += [token if bit else IGNORED for token, bit in zip(own, mask, strict=True)]
        positions += range(start, end)
    return {
        "input_ids": torch.tensor([ids]),
        "labels": torch.tensor([labels]),
        "position_ids": torch.tensor([positions]),
        "segments": torch.tensor(places),
    }


def _first_label(mask: Sequence[int]) -> int:
    """The place of the first label; 0 without one, so that nothing of the row is shared."""
    return next((place for place, bit in enumerate(mask) if bit), 0)
