"""A conversation as token ids, and what a chat format does for it.

A `Dialogue` grows turn by turn, and each turn extends the cached prefix of the last one. How a message becomes ids is
the model's `ChatFormat`: `inference.wrappers` for models whose template is known, and `inference.text_format` for
closed models.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from inference.completion import Completion, Message
from ratchet.records import Author, Conversation, Span

MAX_CHARACTERS = 16
"""Of a token, on average over a text; a word's token has 4 to 5. What stands behind so many is cut without a count."""

Part = tuple[Author, tuple[int, ...]]
"""Token ids in a row that one author wrote."""


class ChatFormat(Protocol):
    """How a model's dialogues are written as token ids."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer; of a closed model, what counts its tokens, or None."""
        ...

    @property
    def is_text(self) -> bool:
        """Whether the ids are characters, because the model's own are not known."""
        ...

    @property
    def end_of_turn(self) -> int:
        """The token with which the model ends its turn."""
        ...

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that no text of a user, document or model may become."""
        ...

    @property
    def turn_ids(self) -> frozenset[int]:
        """The control tokens that mark turns."""
        ...

    @property
    def control_pattern(self) -> re.Pattern[str]:
        """Finds control tokens in text."""
        ...

    @property
    def vocabulary(self) -> int:
        """One more than the largest token id."""
        ...

    @property
    def digest(self) -> str:
        """16 hexadecimal digits: equal ids for equal dialogues, equal digest."""
        ...

    def system(self, text: str) -> list[Part]:
        """The beginning of a dialogue with a system message, which is untrusted as every message is."""
        ...

    def user(self, text: str, after: Author | None) -> list[Part]:
        """A user message and the opening of the assistant's turn, behind a turn of `after`; None: it opens the
        dialogue."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of untrusted text: no control token is among them, whatever the text says."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        ...

    def count(self, ids: Sequence[int]) -> int:
        """How many of the context's tokens a dialogue of these ids takes."""
        ...

    def escape_control_tokens(self, text: str) -> str:
        """`text` with its control tokens broken up, for servers that encode it themselves."""
        ...


def first_tokens(chat: ChatFormat, text: str, max_tokens: int) -> str:
    """The beginning of a text that takes at most so many tokens; the text itself where all of it does."""
    beginning = text[: MAX_CHARACTERS * max_tokens]
    if beginning == text and chat.count(chat.encode(text)) <= max_tokens:
        return text
    ends = range(len(beginning) + 1)
    return text[: bisect_right(ends, max_tokens, key=lambda end: chat.count(chat.encode(text[:end]))) - 1]


@dataclass(frozen=True)
class FormattedTurns:
    """Messages of a program as its model's template writes them, up to where the assistant's turn begins."""

    parts: Sequence[Part]
    """Token ids by who wrote them."""
    messages: Sequence[Message]
    """The same as text."""
    foreign: int = 0
    """How many of the messages are the assistant's: text in the model's name which it did not sample here."""


class Dialogue:
    """One role's conversation while a trajectory runs; `freeze` turns it into a record.

    Ids are only ever appended, apart from `rewind`. A sampled turn that was cut off (no end-of-turn token) is closed by
    the template, and that token is not marked as sampled.
    """

    def __init__(self, role: str, model: str, chat: ChatFormat, trainable: bool, system: str | None = None) -> None:
        self.role, self.model, self.chat, self.trainable = role, model, chat, trainable
        self.ids: list[int] = []
        self.spans: list[Span] = []
        self.messages: list[Message] = []
        self.retokenised = False
        self.foreign_turns = 0
        self._closed = False
        self._started: tuple[int, ...] = ()
        if system is not None:
            self._append_parts(chat.system(system))
            self.messages.append({"role": "system", "content": system})

    def user(self, text: str) -> None:
        """Append a user message and open the assistant's turn. The text is untrusted: it cannot forge a turn.

        ValueError after a user message or a look-ahead.
        """
        if self._closed:
            raise ValueError("a look-ahead ends its dialogue")
        after = self.messages[-1]["role"] if self.ids else None
        if after == "user":
            raise ValueError("two user messages in a row")
        self._append_parts(self.chat.user(text, after))
        self.messages.append({"role": "user", "content": text})

    def extend(self, turns: FormattedTurns) -> None:
        """Append what a program says, which opens the assistant's turn."""
        self._append_parts(turns.parts)
        self.messages += turns.messages
        self.foreign_turns += turns.foreign

    def branch(self, tokens: int, messages: int) -> Dialogue:
        """A dialogue that begins with the first tokens and messages of this one, which are context in it: whoever
        trains on this dialogue has their actions already."""
        branch = Dialogue(self.role, self.model, self.chat, self.trainable)
        for span in self.spans:
            if span.end <= tokens:
                branch._append(span.author, tuple(self.ids[span.start : span.end]))
        branch.messages, branch.retokenised = self.messages[:messages], self.retokenised
        branch.foreign_turns = self.foreign_turns
        return branch

    def continue_assistant(self, ids: Sequence[int]) -> None:
        """Append token ids of earlier calls as the beginning of the assistant's turn, which the next call continues.

        Those calls had other prompts (other documents), so here these tokens are context and never trained on.
        ValueError if they contain the end-of-turn token.
        """
        if self.chat.end_of_turn in ids:
            raise ValueError("an answer that has ended cannot be continued")
        self._started = tuple(ids)
        self._append("assistant", self._started)

    def assistant(self, completion: Completion, parsed: bool) -> tuple[int, int]:
        """Append a completion; returns (start, end), the positions of its sampled ids in `self.ids`.

        It counts as parsed only if the model ended its turn itself and opened no other turn in it. ValueError unless
        the last message is the user's.
        """
        complete = completion.finish_reason == "stop" and self.chat.turn_ids.isdisjoint(completion.ids[:-1])
        return self._append_sampled(completion, len(completion.ids), parsed and complete)

    def draft(self, completion: Completion, keep: int) -> tuple[int, int]:
        """Append a look-ahead of which only the first `keep` tokens are used; returns their (start, end).

        The used part counts as parsed wherever it was cut, unless it or the beginning of the turn opens another turn;
        the rest stays in the log and is never trained on. Nothing can follow in this dialogue. ValueError if
        `keep` is negative or more than the completion has.
        """
        if not 0 <= keep <= len(completion.ids):
            raise ValueError(f"cannot use {keep} of {len(completion.ids)} tokens")
        self._closed = True
        opening = self.chat.turn_ids - {self.chat.end_of_turn}
        return self._append_sampled(completion, keep, opening.isdisjoint((*self._started, *completion.ids[:keep])))

    def _append_sampled(self, completion: Completion, keep: int, parsed: bool) -> tuple[int, int]:
        if not self.messages or self.messages[-1]["role"] != "user":
            raise ValueError("an assistant message must follow a user message")
        start = len(self.ids)
        self._append("assistant", completion.ids[:keep], sampled=True, parsed=parsed)
        end = len(self.ids)
        self._append("assistant", completion.ids[keep:], sampled=True, parsed=False)
        if not completion.ids or completion.ids[-1] != self.chat.end_of_turn:
            self._append("template", (self.chat.end_of_turn,))
        self.messages.append({"role": "assistant", "content": completion.text})
        self.retokenised |= completion.retokenised
        return start, end

    @property
    def position(self) -> tuple[int, int, int]:
        """Where the dialogue is, for `rewind`."""
        return len(self.ids), len(self.spans), len(self.messages)

    def rewind(self, position: tuple[int, int, int]) -> None:
        """Take back everything after a position between two exchanges."""
        ids, spans, messages = position
        del self.ids[ids:], self.spans[spans:], self.messages[messages:]

    def example(self, user: str, assistant: str) -> None:
        """Append a worked example: an exchange of ours that shows the form and is never trained on."""
        self.user(user)
        self._append("assistant", (*self.chat.encode(assistant), self.chat.end_of_turn))
        self.messages.append({"role": "assistant", "content": assistant})

    def _append_parts(self, parts: Sequence[Part]) -> None:
        for author, ids in parts:
            self._append(author, ids)

    def _append(self, author: Author, ids: tuple[int, ...], sampled: bool = False, parsed: bool = True) -> None:
        if ids:
            start = len(self.ids)
            self.ids += ids
            self.spans.append(Span(start=start, end=len(self.ids), author=author, sampled=sampled, parsed=parsed))

    @property
    def tokens(self) -> int:
        """How many of the context's tokens it takes so far."""
        return self.chat.count(self.ids)

    def freeze(self) -> Conversation:
        """The dialogue as an immutable record."""
        return Conversation(
            role=self.role,
            model=self.model,
            trainable=self.trainable,
            ids=() if self.chat.is_text else tuple(self.ids),
            text=self.chat.decode(self.ids) if self.chat.is_text else "",
            spans=tuple(self.spans),
            retokenised=self.retokenised,
            foreign_turns=self.foreign_turns,
        )
