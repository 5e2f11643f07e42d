"""Which of several schedulers takes a request: one that has its beginning in the prefix cache, or one with less to do.

Both are counted in tokens. A token that another scheduler has cached counts twice: it delays the request, and it takes
time from all others. So the samples of a question stay together until a core would be idle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ratchet.inference.local.cache import BLOCK

REMEMBERED = 100_000
"""Blocks of prompts whose schedulers are known; the least recently used are forgotten first."""


class Router:
    """Chooses among `places` by what each was given before; what a full cache has evicted is not known here."""

    def __init__(self, places: int) -> None:
        self.load = [0] * places
        """By place, the tokens of the requests that it has."""
        self._holders: OrderedDict[int, set[int]] = OrderedDict()

    def choose(self, root: str, prompt: Sequence[int], new: int) -> tuple[int, int]:
        """(the place, the tokens that it is given) of a prompt under the cache's namespace `root`, with up to `new`
        tokens to sample. `finished` takes them back."""
        keys, key = [], hash(root)
        for start in range(0, len(prompt) - BLOCK + 1, BLOCK):
            key = hash((key, tuple(prompt[start : start + BLOCK])))
            keys.append(key)
        cached = [0] * len(self.load)
        left = set(range(len(self.load)))
        for key in keys:
            left &= self._holders.get(key, set())
            for place in left:
                cached[place] += BLOCK
        place = min(range(len(self.load)), key=lambda one: self.load[one] - 2 * cached[one])
        tokens = len(prompt) - cached[place] + new
        self.load[place] += tokens
        for key in keys:
            self._holders.setdefault(key, set()).add(place)
            self._holders.move_to_end(key)
        while len(self._holders) > REMEMBERED:
            self._holders.popitem(last=False)
        return place, tokens

    def finished(self, place: int, tokens: int) -> None:
        self.load[place] -= tokens
