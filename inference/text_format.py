"""The chat format of a closed model: its tokenizer is not known, so a dialogue's ids are the characters of its text.

A service gets chat messages and marks the turns itself, so there are no control tokens here and nothing can forge them.
`Dialogue.freeze` records the text in place of ids, with a line break after each message, which the spans mark as the
template's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ratchet.core.errors import UserError
from ratchet.core.records import content_key
from ratchet.core.text import replace_surrogates
from ratchet.inference.turns import AUTHORS, ChatTurn, Part

LINE_BREAK = ord("\n")
BYTES_PER_TOKEN = 3
"""For the estimate: English takes 4 to 5 bytes a token, so the estimate is rather high."""


@dataclass(frozen=True)
class TextFormat:
    """See `inference.chat.ChatFormat`."""

    tokenizer: ClassVar[None] = None
    is_text: ClassVar[bool] = True
    end_of_turn: ClassVar[int] = LINE_BREAK
    end_ids: ClassVar[tuple[int, ...]] = (LINE_BREAK,)
    calls: ClassVar[None] = None
    control_ids: ClassVar[frozenset[int]] = frozenset()
    turn_ids: ClassVar[frozenset[int]] = frozenset()
    control_pattern: ClassVar[re.Pattern[str]] = re.compile(r"(?!)")
    reply_opening: ClassVar[str] = ""
    thinking: ClassVar[None] = None
    vocabulary: ClassVar[int] = sys.maxunicode + 1

    def follow(
        self,
        turns: Sequence[ChatTurn],
        shown: int,
        text: Callable[[], str],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[bool, list[Part]]:
        if tools or any(turn.role == "tool" for turn in turns):
            raise UserError("models that are reached as text (engine: chat-api) take no tools here")
        parts: list[Part] = []
        for turn in turns[shown:]:
            parts += [(AUTHORS[turn.role], self.encode(turn.text)), ("template", (LINE_BREAK,))]
        return True, parts

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, replace_surrogates(text)))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def count(self, ids: Sequence[int]) -> int:
        """An estimate of the tokens. The service's own count is in its answer."""
        return -(-len(self.decode(ids).encode()) // BYTES_PER_TOKEN)

    @property
    def digest(self) -> str:
        """Of the format: how tokens are counted changes no text."""
        return content_key("text")[:16]
