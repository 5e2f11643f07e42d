"""Which rows a step takes where several rows are one example: an example's rows are all in the same step.

The loss of a pair of trajectories is no sum over its rows, so a step needs all of them. A step holds
`training.batch_size` rows; what its examples leave free is filled with blank rows.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ratchet.core.errors import UserError
from ratchet.training.objectives.objective import ExampleObjective, Objective


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
        """`slots` row numbers, step after step, the longest rows of a step first; len(lengths) stands for a blank
        row."""
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
    """How the rows make up steps; None where every row stands alone."""
    if not isinstance(objective, ExampleObjective):
        return None
    examples: dict[str, list[int]] = defaultdict(list)
    for number, example in enumerate(rows["example"].to_pylist()):
        examples[example].append(number)
    return pack(list(examples.values()), objective.training.batch_size)
