"""The rows of each step and micro-batch, and a micro-batch as tensors.

- The order of an epoch, and which rows share a micro-batch.
- Where several rows are one example, all of them are in one step: the loss of a pair of trajectories is no sum over its
  rows. A step holds `training.batch_size` rows; what its examples leave free is filled with blank rows.
- A micro-batch is padded to its longest row, or has its rows one after the other without padding
  (`training.padding_free`); on a CPU the equal beginnings of their prompts are there once. Rows of one role begin with
  the same instructions and worked examples, and rows of one question with the same documents. The sequence then is a
  tree of segments: each attends to itself and to the segments above it, so every token has the activations that it has
  in its own row, and what is shared gets the sum of the gradients of all rows.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch.utils.data import Sampler

from ratchet.core.errors import UserError
from ratchet.training.objectives.objective import ExampleObjective, Objective

IGNORED = -100
"""The label that the loss skips, as everywhere in transformers."""
MODEL_INPUTS = (
    "input_ids", "attention_mask", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
    "segments",
)  # fmt: skip


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


def mixed_order(rows: Sequence[int], lengths: Sequence[int], micro_batch: int) -> list[int]:
    """The rows of a batch so that its micro-batches have like numbers of tokens, long rows with short ones.

    For micro-batches without padding: none is much larger than the others, which bounds the memory, and devices that
    work side by side get like loads. The longest row first, each goes where the fewest tokens are.
    """
    groups = [list[int]() for _ in range(0, len(rows), micro_batch)]
    room = [min(micro_batch, len(rows) - at) for at in range(0, len(rows), micro_batch)]
    heap = [(0, number) for number in range(len(groups))]
    for row in sorted(rows, key=lambda row: -lengths[row]):
        tokens, number = heapq.heappop(heap)
        groups[number].append(row)
        if len(groups[number]) < room[number]:
            heapq.heappush(heap, (tokens + lengths[row], number))
    return [row for group in groups for row in group]


def mixed_batches(order: Sequence[int], lengths: Sequence[int], batch_size: int, micro_batch: int) -> list[int]:
    """An epoch's order, each batch of it in `mixed_order`."""
    batches = (order[at : at + batch_size] for at in range(0, len(order), batch_size))
    return [row for batch in batches for row in mixed_order(batch, lengths, micro_batch)]


class EpochSampler(Sampler[int]):
    """Yields the rows of an epoch, which is asked for when iteration begins, so a resumed run needs no saved state.

    `order`: the row numbers of an epoch, `count` of them. `rows_at_once`: rows that all devices take at once. An epoch
    that is no multiple of it ends with the number of the blank row (`with_blank_row`); accelerate would fill the gap
    with rows that were trained on already.
    """

    def __init__(
        self, order: Callable[[int], list[int]], count: int, blank: int, epoch: Callable[[], int], rows_at_once: int = 1
    ) -> None:
        self.order, self.count, self.epoch = order, count, epoch
        self.blanks = [blank] * (-count % rows_at_once)

    def __len__(self) -> int:
        return self.count + len(self.blanks)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order(self.epoch()) + self.blanks)


@dataclass(frozen=True)
class Packing:
    """The steps of an epoch. Every epoch has as many, with room for examples of the same sizes: only which example of
    a size is where changes, and the order of the steps."""

    examples: tuple[tuple[int, ...], ...]
    """Row numbers of each example."""
    steps: tuple[tuple[int, ...], ...]
    """By step, the sizes of the examples that it takes."""
    batch_size: int

    @property
    def slots(self) -> int:
        """Rows of an epoch, blank ones included."""
        return len(self.steps) * self.batch_size if len(self.steps) > 1 else sum(map(len, self.examples))

    def order(self, lengths: Sequence[int], seed: int, epoch: int) -> list[int]:
        """Row numbers step after step, the longest rows of a step first; len(lengths) stands for a blank row."""
        rng = random.Random(f"{seed}/{epoch}")
        of_size: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for example in self.examples:
            of_size[len(example)].append(example)
        for examples in of_size.values():
            rng.shuffle(examples)
        order: list[int] = []
        for step in rng.sample(self.steps, len(self.steps)):
            rows = [row for size in step for row in of_size[size].pop()]
            free = self.batch_size - len(rows) if len(self.steps) > 1 else 0
            order += [*sorted(rows, key=lambda row: -lengths[row]), *[len(lengths)] * free]
        return order


def pack(examples: Sequence[Sequence[int]], batch_size: int) -> Packing:
    """Examples of row numbers into steps, the largest first, each where it leaves the least room. Raises UserError
    where an example has more rows than a step."""
    steps: list[list[int]] = []
    with_room: dict[int, list[int]] = defaultdict(list)
    for size in sorted(map(len, examples), reverse=True):
        if size > batch_size:
            raise UserError(
                f"training.batch_size={batch_size}: an example of this objective has {size} rows, which have to be in "
                f"one step; set training.batch_size to {size} or more, or training.preference.level=action"
            )
        room = next((room for room in range(size, batch_size + 1) if with_room[room]), None)
        number = len(steps) if room is None else with_room[room].pop()
        if room is None:
            steps.append([])
        steps[number].append(size)
        with_room[(batch_size if room is None else room) - size].append(number)
    return Packing(tuple(map(tuple, examples)), tuple(map(tuple, steps)), batch_size)


def packing_of(rows: pa.Table, objective: Objective) -> Packing | None:
    """The steps of rows that make up examples; None where every row stands alone."""
    if not isinstance(objective, ExampleObjective):
        return None
    examples: dict[str, list[int]] = defaultdict(list)
    for number, example in enumerate(rows["example"].to_pylist()):
        examples[example].append(number)
    return pack(list(examples.values()), objective.training.batch_size)


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
    them (`concatenate`), or shares their prompts (`as_tree`). `row_lengths` and `row_labels`, each (rows,),
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
