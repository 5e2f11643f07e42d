"""Items that a model numbers in its reply, such as the claims of an answer."""

from __future__ import annotations

from collections.abc import Sequence


def rebase(ids: Sequence[int], expected: Sequence[int]) -> list[int] | None:
    """The expected number of every id, in the reply's order; None where that cannot be told.

    Exactly the expected numbers, in any order, are taken as they are. A run of as many numbers that starts elsewhere
    (0, 1, 2 of the items 1, 2, 3) counts by position. Of anything else nothing is taken: where the model counts from
    another number than we do, an id that happens to be expected names its neighbour.
    """
    if set(ids) == set(expected):
        return list(ids)
    is_run = len(ids) == len(expected) and list(ids) == list(range(ids[0], ids[0] + len(ids)))
    return list(expected) if is_run else None
