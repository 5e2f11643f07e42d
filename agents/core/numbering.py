"""Items that a model numbers in its reply, such as the claims of an answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def rebase(ids: Sequence[int | None], expected: Sequence[int], known: Collection[int] = ()) -> list[int] | None:
    """The expected number of every id, in the reply's order; None where that cannot be told.

    Exactly the expected numbers, in any order, are taken as they are. As many numbers that count from 0 or from 1
    (0, 1, 2 of the items 5, 6, 7) name places, unless one of them is the number of an item that the model knows
    (`known`). Of anything else nothing is taken: an id that happens to be expected may name its neighbour.
    """
    given = set(ids)
    if given == set(expected):
        return [number for number in ids if number is not None]
    counted = [list(range(first, first + len(expected))) for first in (0, 1)]
    return list(expected) if list(ids) in counted and given.isdisjoint(known) else None
