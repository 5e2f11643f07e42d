"""The chat format of a closed model: its tokenizer is not known, so a dialogue's ids are the characters of its text.

A service gets chat messages and marks the turns itself, so there are no control tokens here and nothing can forge them.
`Dialogue.freeze` records the text in place of ids, with a line break after each message, which the spans mark as the
template's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from inference.chat import ChatFormat
from inference.tokenizer import load_tokenizer
from ratchet.records import content_key
from ratchet.text import replace_surrogates

LINE_BREAK = ord("\n")
BYTES_PER_TOKEN = 3
"""For the estimate where no tokenizer is named: English takes 4 to 5 bytes a token, so the estimate is rather high."""


class TextFormat(ChatFormat):
    """See `inference.chat.ChatFormat`. `tokenizer` counts tokens, and is used for nothing else."""

    is_text: ClassVar[bool] = True

    @classmethod
    def counting_with(cls, path: str | None) -> TextFormat:
        """The format that counts with the tokenizer of a folder or hub name; without one it estimates. UserError."""
        return cls(
            tokenizer=None if path is None else load_tokenizer(path),
            before_system=(),
            system_to_user=(LINE_BREAK,),
            before_user=(),
            user_to_assistant=(LINE_BREAK,),
            end_of_turn=LINE_BREAK,
            assistant_to_user=(),
            system_tail="",
            user_tail="",
            control_ids=frozenset(),
            turn_ids=frozenset(),
            control_pattern=re.compile(r"(?!)"),
        )

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, replace_surrogates(text)))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def count(self, ids: Sequence[int]) -> int:
        """Tokens, by the tokenizer or the estimate. The service's own count is in its answer."""
        text = self.decode(ids)
        if self.tokenizer is None:
            return -(-len(text.encode()) // BYTES_PER_TOKEN)
        encode: Callable[..., Sequence[int]] = self.tokenizer.encode
        return len(encode(text, add_special_tokens=False, verbose=False))

    @property
    def digest(self) -> str:
        """Of the format alone: how tokens are counted changes no text."""
        return content_key("text")[:16]
