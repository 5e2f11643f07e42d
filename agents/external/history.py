"""Which recorded conversation a program's request continues: by its messages, from the first one on.

A request has all of its dialogue's messages. Those up to an assistant's turn that was recorded stand for its token ids;
several agents of one program have different first messages, and so different conversations. This is a tree: a request
may also continue an earlier turn, which then has two continuations.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ratchet.inference.chat import Dialogue, Row
from ratchet.inference.completion import ChatTurn


@dataclass(frozen=True)
class Position:
    """The end of an assistant's turn in a conversation."""

    dialogue: Dialogue
    row: Row
    tokens: int
    """Of the row up to here."""
    turns: int

    @classmethod
    def end_of(cls, dialogue: Dialogue) -> Position:
        return cls(dialogue, dialogue.row, len(dialogue.ids), len(dialogue.turns))

    @property
    def is_end(self) -> bool:
        """Nothing was said after it."""
        return self.dialogue.row is self.row and len(self.row.ids) == self.tokens

    def branch(self) -> Dialogue:
        """A dialogue that begins with what is up to here."""
        return self.dialogue.branch(self.row, self.tokens, self.turns)


class History:
    """The turns of a trajectory that were recorded.

    `opening` is what a dialogue begins with besides its messages: its role and tools.
    """

    def __init__(self) -> None:
        self._positions: dict[tuple[Hashable, tuple[ChatTurn, ...]], list[Position]] = {}
        self._lengths: set[int] = set()
        """Of the turns under which there is a position: no other beginnings of a request are looked up."""

    def find(self, opening: Hashable, turns: Sequence[ChatTurn]) -> tuple[Position | None, list[ChatTurn]]:
        """The longest recorded beginning of a request's turns, and the turns that follow it.

        Where two turns are alike, as of two equal requests, the one that nothing follows yet.
        """
        for length in sorted(self._lengths, reverse=True):
            if positions := self._positions.get((opening, tuple(turns[:length]))):
                position = next((position for position in positions if position.is_end), positions[0])
                return position, list(turns[length:])
        return None, list(turns)

    def record(self, opening: Hashable, turns: Sequence[ChatTurn], position: Position) -> None:
        """Remember where a dialogue is after these turns, the last of which the model said."""
        self._positions.setdefault((opening, tuple(turns)), []).append(position)
        self._lengths.add(len(turns))
