"""A look-ahead: what a model would say next, of which a system keeps as much as it wants (FLARE, IRCoT)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Draft:
    """What a model said in a look-ahead, and how much of it is used."""

    ids: tuple[int, ...]
    """As sampled, the end-of-turn token included where the model ended its turn."""
    text: str
    """Without the end-of-turn token."""
    logprobs: tuple[float, ...]
    """Of each id, under the unmodified model; empty where none were asked for."""
    ended: bool
    """The model ended its turn: the last id is the end-of-turn token."""
    decode: Callable[[Sequence[int]], str]
    kept: int = 0
    """How many ids are used."""

    @property
    def used(self) -> tuple[int, ...]:
        """The ids that are used, without the end-of-turn token: the next answer starts with them."""
        return self.ids[: self.kept - 1] if self.finished else self.ids[: self.kept]

    @property
    def finished(self) -> bool:
        """All of it is used, and the model ended its turn with it."""
        return self.ended and self.kept == len(self.ids)

    def tokens(self, characters: int) -> int:
        """How many ids it takes to say the first so many characters of `text`; all of them, the end-of-turn token
        included, when nothing is left behind."""
        if not self.text[characters:].strip():
            return len(self.ids)
        wanted = self.text[:characters]
        low, high = 0, len(self.ids)
        while low < high:
            middle = (low + high) // 2
            # Not merely as long: a letter of several bytes, cut between two tokens, decodes to a stand-in for it.
            if self.decode(self.ids[:middle]).startswith(wanted):
                high = middle
            else:
                low = middle + 1
        return low
