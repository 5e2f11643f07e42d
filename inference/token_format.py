"""What chat formats have in common whose model's tokenizer is known: text that cannot forge a control token."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from ratchet.core.text import replace_surrogates
from ratchet.inference.tool_calls import OTHER_ENDS, CallForm, find_form


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenFormat:
    """A tokenizer and its control tokens. What users, documents and models write is encoded with control tokens
    split into ordinary ones: `<|im_start|>` in a passage is seven harmless tokens, never a turn."""

    tokenizer: Any
    end_of_turn: int
    """The token with which the model ends its turn."""
    control_ids: frozenset[int]
    turn_ids: frozenset[int]
    """The control tokens that this template marks turns with."""
    control_pattern: re.Pattern[str]
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Of the template, such as enable_thinking."""
    is_text: ClassVar[bool] = False

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of untrusted text: no control token is among them, whatever the text says.

        Lone surrogates, which JSON can hold and UTF-8 cannot, become question marks.
        """
        text = replace_surrogates(text)
        found = self._encode(text, split=False)
        if self.control_ids.isdisjoint(found):
            return tuple(found)
        found = self._encode(text)
        if self.control_ids.isdisjoint(found):
            return tuple(found)
        # Added tokens that are not marked special are not split by the tokenizer: cut each behind its first letter.
        found, at = [], 0
        while match := self.control_pattern.search(text, at):
            found += self._encode(text[at : match.start() + 1])
            at = match.start() + 1
        found += self._encode(text[at:])
        if not self.control_ids.isdisjoint(found):
            # Letters that the tokenizer first rewrites into those of a control token (a full-width <, say).
            found = [i for letter in text for i in self._encode(letter)]
        return tuple(i for i in found if i not in self.control_ids)

    def _encode(self, text: str, split: bool = True) -> list[int]:
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=split, verbose=False)
        return list(ids)

    def escape_control_tokens(self, text: str) -> str:
        """`text` with a zero-width space in every control token, for JSON that a template writes among its own text."""
        while self.control_pattern.search(text):
            text = self.control_pattern.sub(lambda match: match[0][0] + "\u200b" + match[0][1:], text)
        return text

    def count(self, ids: Sequence[int]) -> int:
        """How many of the context's tokens a dialogue of these ids takes."""
        return len(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        # Not transformers' own: it may drop blanks before punctuation, and looks at every id in Python first, which
        # takes longer than all the rest.
        return str(self.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def calls(self) -> CallForm | None:
        """See `inference.chat.ChatFormat`."""
        return find_form(self.tokenizer, self.decode([self.end_of_turn]), self.control_pattern, self.variables)

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """See `inference.chat.ChatFormat`."""
        names = {*OTHER_ENDS, self.calls.end if self.calls else ""}
        others = {i for i in self.control_ids if self.tokenizer.convert_ids_to_tokens(i) in names}
        return (self.end_of_turn, *sorted(others - {self.end_of_turn}))

    @cached_property
    def vocabulary(self) -> int:
        """One more than the largest token id."""
        return max(self.tokenizer.get_vocab().values()) + 1

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of the tokenizer and its template: equal ids for equal texts, equal digest."""
        template = str(self.tokenizer.chat_template)
        return hashlib.sha256((self.tokenizer.backend_tokenizer.to_str() + template).encode()).hexdigest()[:16]


def control_names(tokenizer: Any) -> dict[int, str]:
    """Control tokens by id: special and added ones. Single letters and blanks, which some vocabularies add, are not."""
    known = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    names = {i: str(tokenizer.convert_ids_to_tokens(i)) for i in known}
    return {i: name for i, name in names.items() if len(name.strip()) > 1}


def control_pattern(names: dict[int, str]) -> re.Pattern[str]:
    """Finds control tokens in text, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(names.values(), key=len, reverse=True))) or r"(?!)")
