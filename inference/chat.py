"""A conversation as token ids, and what a chat format does for it.

A `Dialogue` grows turn by turn, and each turn extends the cached prefix of the last one. How a message becomes ids is
the model's `ChatFormat`: `inference.chat_formats` for models whose template is known, and `inference.http.chat_api` for
closed models.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ratchet.core.records import Author, Conversation, Span
from ratchet.inference.completion import ChatTurn, Completion, FunctionCall, Message, Part
from ratchet.inference.thoughts import Thinking, split_thought, thought_length
from ratchet.inference.tool_calls import CALL_ID, CallForm

MAX_CHARACTERS = 16
"""Characters of a token, on average over a text; a word's token has 4 to 5. A longer text is cut without a count."""


class ChatFormat(Protocol):
    """The format in which a model's dialogues are written as token ids."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer; None of a closed one."""

    @property
    def is_text(self) -> bool:
        """Return whether the ids are characters, because the model's own are not known."""

    @property
    def end_of_turn(self) -> int:
        """The token with which the model ends its turn, and which closes one that was cut off."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All tokens with which the model ends a turn, `end_of_turn` first: some end one that calls a tool."""

    @property
    def calls(self) -> CallForm | None:
        """The form of the model's tool calls; None where its template takes no tools."""

    @property
    def places_system(self) -> bool:
        """Whether a system message behind others is shown in its place; else it is a user's."""

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that no text of a user, document or model may become."""

    @property
    def turn_ids(self) -> frozenset[int]:
        """The control tokens that mark turns."""

    @property
    def control_pattern(self) -> re.Pattern[str]:
        """Finds control tokens in text."""

    @property
    def vocabulary(self) -> int:
        """One more than the largest token id."""

    @property
    def digest(self) -> str:
        """16 hexadecimal digits: equal ids for equal dialogues, equal digest."""

    @property
    def reply_opening(self) -> str:
        """The beginning of the model's reply in the prompt, such as `<think>`; most often empty."""

    @property
    def thinking(self) -> Thinking | None:
        """The tokens of the model's thoughts; None where it has none, or they are not marked by single tokens."""

    def follow(
        self,
        turns: Sequence[ChatTurn],
        shown: int,
        text: Callable[[], str],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[bool, list[Part]]:
        """Return (True, the parts to append) so that a row that holds the first `shown` turns and reads `text()` has
        all turns, up to where the assistant's turn begins. (False, the parts of a new row) where the template writes
        what was said before in another way now.

        Every message is untrusted. `tools`: of a program's dialogue, those that the model may call, as OpenAI's API has
        them. Raises UserError where the template refuses these turns.
        """

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode untrusted text: no control token is among the ids, whatever the text says."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, control tokens included."""

    def count(self, ids: Sequence[int]) -> int:
        """Count the context's tokens that a dialogue of these ids takes."""


def first_tokens(chat: ChatFormat, text: str, max_tokens: int) -> str:
    """Return the beginning of a text that takes at most so many tokens."""
    beginning = text[: MAX_CHARACTERS * max_tokens]
    if beginning == text and chat.count(chat.encode(text)) <= max_tokens:
        return text
    ends = range(len(beginning) + 1)
    return text[: bisect_right(ends, max_tokens, key=lambda end: chat.count(chat.encode(text[:end]))) - 1]


class Row:
    """Token ids in a row, which the model was shown and continued: one conversation of the record."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.spans: list[Span] = []
        self.tool_calls: int | None = None
        """Calls of tools that a program offered in it."""

    def append(
        self, author: Author, ids: Sequence[int], sampled: bool = False, parsed: bool = True, thought: bool = False
    ) -> None:
        if ids:
            start, end = len(self.ids), len(self.ids) + len(ids)
            self.ids += ids
            self.spans.append(
                Span(start=start, end=end, author=author, sampled=sampled, parsed=parsed, thought=thought)
            )


class Dialogue:
    """One role's conversation while a trajectory runs; `freeze` turns it into records.

    Ids are only ever appended, apart from `rewind`. Where the model's template writes the past in another way than it
    was (it drops thoughts, say), a new row begins: what was sampled stays in the row in which it was sampled, and is
    context in the next. A sampled turn that was cut off (no end-of-turn token) is closed by the template, and that
    token is not marked as sampled.
    """

    def __init__(
        self,
        role: str,
        model: str,
        chat: ChatFormat,
        trainable: bool,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """`tools`: those that the model may call, as OpenAI's API has them; the call of a turn is answered by the next
        `user` message."""
        self.role, self.model, self.chat, self.trainable, self.tools = role, model, chat, trainable, tools
        self.rows = [Row()]
        self.turns: list[ChatTurn] = []
        self.foreign_turns = 0
        self.offered_tools = tools is not None
        """Whether tools may be called in it, which a program may offer as it goes on."""
        self._shown = 0
        self._closed = False
        self._started: tuple[int, ...] = ()
        if system is not None and tools is None:
            self._say(ChatTurn("system", system))
        elif system is not None:
            self.turns.append(ChatTurn("system", system))  # the template writes it together with the tools

    @property
    def row(self) -> Row:
        """The row that the next turn continues."""
        return self.rows[-1]

    @property
    def ids(self) -> list[int]:
        """The ids of the row: all that the model is shown now."""
        return self.row.ids

    @property
    def spans(self) -> list[Span]:
        return self.row.spans

    @property
    def messages(self) -> list[Message]:
        """The turns for engines over text."""
        return [turn.message for turn in self.turns]

    @property
    def waits(self) -> bool:
        """Return whether the last message has no reply yet."""
        behind = self.turns[1:] or [turn for turn in self.turns if turn.role != "system"]
        return bool(behind) and behind[-1].role != "assistant"

    def user(self, text: str) -> None:
        """Append a user message and open the assistant's turn. The text is untrusted: it cannot forge a turn.

        ValueError after a user message or a look-ahead.
        """
        if self._closed:
            raise ValueError("a look-ahead ends its dialogue")
        if self.waits:
            raise ValueError("two user messages in a row")
        call = next(iter(self.turns[-1].calls if self.turns else ()), None)
        self._say(ChatTurn("tool", text, answers=call.id) if call else ChatTurn("user", text), tools=self.tools)

    def _say(self, *turns: ChatTurn, tools: Sequence[Mapping[str, Any]] | None = None) -> None:
        said = [*self.turns, *turns]
        goes_on, parts = self.chat.follow(said, self._shown, lambda: self.chat.decode(self.ids), tools)
        self.turns = said
        if not goes_on:
            self.rows.append(Row())
        for author, ids in parts:
            self.row.append(author, ids)
        if parts:
            self._shown = len(self.turns)

    def extend(self, turns: Sequence[ChatTurn], tools: Sequence[Mapping[str, Any]]) -> None:
        """Append what a program says, which opens the assistant's turn. UserError where the template refuses it."""
        self.offered_tools = self.offered_tools or bool(tools)
        self._say(*turns, tools=tools)
        self.foreign_turns += sum(turn.role == "assistant" for turn in turns)

    def branch(self, row: Row, tokens: int, turns: int) -> Dialogue:
        """Return a dialogue that begins with the first tokens of a row and the first turns of this one, which are
        context in it: whoever trains on this dialogue has their actions already."""
        branch = Dialogue(self.role, self.model, self.chat, self.trainable)
        for span in row.spans:
            if span.end <= tokens:
                branch.row.append(span.author, row.ids[span.start : span.end], thought=span.thought)
        branch.turns = self.turns[:turns]
        branch.foreign_turns, branch._shown = self.foreign_turns, turns
        return branch

    def continue_assistant(self, ids: Sequence[int]) -> None:
        """Append token ids of earlier calls as the beginning of the assistant's turn, which the next call continues.

        Those calls had other prompts (other documents), so here these tokens are context and never trained on.
        ValueError if they contain the end-of-turn token.
        """
        if not set(self.chat.end_ids).isdisjoint(ids):
            raise ValueError("an answer that has ended cannot be continued")
        self._started = tuple(ids)
        self.row.append("assistant", self._started)

    def assistant(self, completion: Completion, parsed: bool) -> tuple[int, int]:
        """Append a completion; returns (start, end), the positions of its sampled ids in `self.ids`.

        It counts as parsed only if the model ended its turn itself and opened no other turn in it. ValueError unless
        the last message is the user's.
        """
        complete = completion.finish_reason == "stop" and self.chat.turn_ids.isdisjoint(completion.ids[:-1])
        thinks = thought_length(completion, self.chat.reply_opening, self.chat.decode)
        return self._append_sampled(completion, len(completion.ids), parsed and complete, thinks)

    def thought_tokens(self, completion: Completion) -> int:
        """Count the context's tokens that the thought of a completion takes, and those that a service hid."""
        length = thought_length(completion, self.chat.reply_opening, self.chat.decode)
        return completion.hidden_thought_tokens + self.chat.count(completion.ids[:length])

    def draft(self, completion: Completion, keep: int) -> tuple[int, int]:
        """Append a look-ahead of which only the first `keep` tokens are used; returns their (start, end).

        The used part counts as parsed wherever it was cut, unless it or the beginning of the turn opens another turn;
        the rest stays in the log and is never trained on. Nothing can follow in this dialogue. ValueError if
        `keep` is negative or more than the completion has.
        """
        if not 0 <= keep <= len(completion.ids):
            raise ValueError(f"cannot use {keep} of {len(completion.ids)} tokens")
        self._closed = True
        opening = self.chat.turn_ids.difference(self.chat.end_ids)
        return self._append_sampled(completion, keep, opening.isdisjoint((*self._started, *completion.ids[:keep])))

    def _append_sampled(self, completion: Completion, keep: int, parsed: bool, thinks: int = 0) -> tuple[int, int]:
        if not self.waits:
            raise ValueError("an assistant message must follow a user message")
        start = len(self.ids)
        inserted = range(*completion.inserted)
        for first, last in itertools.pairwise(sorted({0, thinks, inserted.start, inserted.stop, keep})):
            sampled = first not in inserted
            self.row.append("assistant", completion.ids[first:last], sampled, parsed or not sampled, last <= thinks)
        end = len(self.ids)
        self.row.append("assistant", completion.ids[keep:], sampled=True, parsed=False)
        if not completion.ids or completion.ids[-1] not in self.chat.end_ids:
            self.row.append("template", (self.chat.end_of_turn,))
        thought, text = split_thought(self.chat.reply_opening + completion.text)
        text, calls = self._read_calls(text)
        self.turns.append(ChatTurn("assistant", text, thought, calls, raw=completion.text))
        self._shown = len(self.turns)
        return start, end

    def _read_calls(self, text: str) -> tuple[str, tuple[FunctionCall, ...]]:
        """Return (what a turn says, the first of its calls): systems carry one out, and some templates show no more."""
        if self.tools is None or self.chat.calls is None:
            return text, ()
        try:
            said, calls = self.chat.calls.read(text, self.tools)
        except ValueError:
            return text, ()
        return said, tuple(replace(call, id=CALL_ID.format(len(self.turns))) for call in calls[:1])

    @property
    def position(self) -> tuple[int, int, int, int, int]:
        return len(self.rows), len(self.ids), len(self.spans), len(self.turns), self._shown

    def rewind(self, position: tuple[int, int, int, int, int]) -> None:
        """Take back everything after a position between two exchanges."""
        rows, ids, spans, turns, self._shown = position
        for row in self.rows[rows:]:
            row.ids.clear()
            row.spans.clear()
        del self.rows[rows:], self.ids[ids:], self.spans[spans:], self.turns[turns:]

    def example(self, user: str, assistant: str) -> None:
        """Append a worked example: an exchange of ours that shows the form and is never trained on."""
        self.user(user)
        self._say(ChatTurn("assistant", assistant))

    @property
    def tokens(self) -> int:
        """The number of the context's tokens that it takes so far."""
        return self.chat.count(self.ids)

    def freeze(self, row: Row | None = None) -> Conversation:
        """Return a row as an immutable record; default: the last one."""
        row = row or self.row
        return Conversation(
            role=self.role,
            model=self.model,
            trainable=self.trainable,
            ids=() if self.chat.is_text else tuple(row.ids),
            text=self.chat.decode(row.ids) if self.chat.is_text else "",
            spans=tuple(row.spans),
            foreign_turns=self.foreign_turns,
            tool_calls=row.tool_calls,
            rewritten=row is not self.rows[0],
        )
