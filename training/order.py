"""The order in which an epoch goes through the rows, and which of them share a micro-batch."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence

from torch.utils.data import Sampler


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
