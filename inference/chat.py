"""A conversation as token ids, and the chat format that it is written in.

A `Dialogue` grows turn by turn, and each turn extends the cached prefix of the last one. Its `ChatFormat` holds
wrappers that are derived from the model's own chat template, and encodes untrusted text so that it cannot forge them.

Templates render text; we need ids, and need to know who wrote each. So the template is rendered once around
sentinels, the text between them becomes the wrappers, and `check` asserts that joining wrappers and clean text
gives the ids of the rendered template. What users, documents and models write is encoded with control tokens
split into ordinary ones: `<|im_start|>` in a passage is seven harmless tokens, never a turn.
"""

from __future__ import annotations

import hashlib
import logging
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from inference.completion import Completion, Message
from inference.rendering import render
from ratchet.errors import UserError
from ratchet.records import Author, Conversation, Span
from ratchet.text import replace_surrogates

SENTINEL = "\ue000{}\ue001"
MAX_CHARACTERS = 16
"""Of a token, on average over a text; a word's token has 4 to 5. What stands behind so many is cut without a count."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChatFormat:
    """Wrappers of one chat template. The `*_ids` are template text with control tokens parsed."""

    tokenizer: Any
    before_system: tuple[int, ...]
    system_to_user: tuple[int, ...]
    before_user: tuple[int, ...]
    """Opens a dialogue without a system message (may hold the template's default one)."""
    user_to_assistant: tuple[int, ...]
    end_of_turn: int
    """The token with which the model ends its turn."""
    assistant_to_user: tuple[int, ...]
    """What follows end_of_turn up to the next user message."""
    system_tail: str
    user_tail: str
    """Ordinary text that the template puts right behind a message (Falcon 3: a line break). It is encoded together
    with the message, as in the template's own text, where '?' and the line break may be one token."""
    control_ids: frozenset[int]
    turn_ids: frozenset[int]
    """The control tokens that this template marks turns with."""
    control_pattern: re.Pattern[str]
    is_text: ClassVar[bool] = False
    """Whether the ids are characters, because the model's own are not known (`inference.text_format`)."""

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, where: str = "the model") -> ChatFormat:
        """Derive the wrappers from a tokenizer's chat template. UserError for a template that is not supported."""
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                f"{where} has no chat template, so its turns cannot be formatted; use an instruct model, or add "
                "chat_template.jinja to its folder"
            )
        system, user, assistant, again = (SENTINEL.format(name) for name in ("s", "u", "a", "v"))
        names = _control_names(tokenizer)
        pattern = re.compile("|".join(map(re.escape, sorted(names.values(), key=len, reverse=True))) or r"(?!)")

        def template_parts(messages: list[tuple[str, str]], generation: bool = False) -> list[str]:
            """The template's own text before, between and after the messages, len(messages) + 1 pieces."""
            text = render(tokenizer, messages, generation, where)
            pieces = []
            for role, sentinel in messages:
                before, found, text = text.partition(sentinel)
                if not found:
                    raise UserError(
                        f"{where}: its chat template does not show the {role} message as it is, so its turns cannot "
                        "be told apart; templates that rewrite messages are not supported"
                    )
                pieces.append(before)
            return [*pieces, text]

        def split_tail(wrapper: str) -> tuple[str, str]:
            """Split a wrapper into (ordinary text, the rest from the first control token on)."""
            control = pattern.search(wrapper)
            if control is None:
                # The names of the roles are ordinary text: nothing keeps a passage from imitating them.
                logger.warning("%s: no control token is in %r, so a document could imitate a turn", where, wrapper)
                return "", wrapper
            return wrapper[: control.start()], wrapper[control.start() :]

        def ids(text: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(text, add_special_tokens=False))

        before_system, after_system, _ = template_parts([("system", system), ("user", user)])
        dialogue = [("user", user), ("assistant", assistant), ("user", again)]
        before_user, after_user, after_assistant, _ = template_parts(dialogue)
        after_ids = ids(after_assistant)
        if not after_ids or after_ids[0] not in names:
            raise UserError(f"{where}: its chat template does not end an assistant turn with a control token")
        # The generation prompt (what precedes a sampled turn) must be what the template shows in past turns too.
        _, prompt_text = template_parts([("user", user)], generation=True)
        if prompt_text != after_user:
            raise UserError(
                f"{where}: its generation prompt {prompt_text!r} differs from how past assistant turns begin "
                f"({after_user!r}), so a growing dialogue would change its own past"
            )
        system_tail, system_to_user = split_tail(after_system)
        user_tail, user_to_assistant = split_tail(after_user)
        wrappers = [ids(text) for text in (before_system, system_to_user, before_user, user_to_assistant)]
        chat = cls(
            tokenizer=tokenizer,
            before_system=wrappers[0],
            system_to_user=wrappers[1],
            before_user=wrappers[2],
            user_to_assistant=wrappers[3],
            end_of_turn=after_ids[0],
            assistant_to_user=after_ids[1:],
            system_tail=system_tail,
            user_tail=user_tail,
            control_ids=frozenset(names),
            turn_ids=frozenset(names).intersection(after_ids + sum(wrappers, ())),
            control_pattern=pattern,
        )
        chat.check(where)
        return chat

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
        """`text` with a zero-width space in every control token, for servers that encode it themselves."""
        while self.control_pattern.search(text):
            text = self.control_pattern.sub(lambda match: match[0][0] + "\u200b" + match[0][1:], text)
        return text

    def count(self, ids: Sequence[int]) -> int:
        """How many of the context's tokens a dialogue of these ids takes."""
        return len(ids)

    def first_tokens(self, text: str, max_tokens: int) -> str:
        """The beginning of a text that takes at most so many tokens; the text itself where all of it does."""
        beginning = text[: MAX_CHARACTERS * max_tokens]
        if beginning == text and self.count(self.encode(text)) <= max_tokens:
            return text
        ends = range(len(beginning) + 1)
        return text[: bisect_right(ends, max_tokens, key=lambda end: self.count(self.encode(text[:end]))) - 1]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        # Not transformers' own: it may drop blanks before punctuation, and looks at every id in Python first, which
        # takes longer than all the rest.
        return str(self.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def vocabulary(self) -> int:
        """One more than the largest token id."""
        return max(self.tokenizer.get_vocab().values()) + 1

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of the tokenizer and its template: equal ids for equal texts, equal digest."""
        template = str(self.tokenizer.chat_template)
        return hashlib.sha256((self.tokenizer.backend_tokenizer.to_str() + template).encode()).hexdigest()[:16]

    def check(self, where: str) -> None:
        """Check that joined wrappers and text equal the template's own ids on clean text; UserError if they differ."""
        system, turns = "Answer in one word.", ["Where is Oslo?", "Norway.", '{"a": [1, 2]}', "Peru", "1 more"]
        for with_system in (True, False):
            messages = [("system", system)] if with_system else []
            messages += [("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(turns)]
            joined = (
                [*self.before_system, *self.encode(system + self.system_tail), *self.system_to_user]
                if with_system
                else [*self.before_user]
            )
            for i, text in enumerate(turns):
                if i % 2 == 0:
                    joined += (*self.encode(text + self.user_tail), *self.user_to_assistant)
                else:
                    joined += (*self.encode(text), self.end_of_turn, *self.assistant_to_user)
            rendered = render(self.tokenizer, messages, True, where)
            expected = self.tokenizer.encode(rendered, add_special_tokens=False)
            if joined != expected:
                raise UserError(
                    f"{where}: the chat template could not be split into wrappers token for token: {rendered!r}"
                )


@dataclass(frozen=True)
class FormattedTurns:
    """Messages of a program as its model's template writes them, up to where the assistant's turn begins."""

    parts: Sequence[tuple[Author, tuple[int, ...]]]
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
            self._append("template", chat.before_system)
            self._append("system", chat.encode(system + chat.system_tail))
            self.messages.append({"role": "system", "content": system})

    def user(self, text: str) -> None:
        """Append a user message and open the assistant's turn. The text is untrusted: it cannot forge a turn.

        ValueError after a user message or a look-ahead.
        """
        if self._closed:
            raise ValueError("a look-ahead ends its dialogue")
        if not self.ids:
            self._append("template", self.chat.before_user)
        elif self.messages[-1]["role"] == "system":
            self._append("template", self.chat.system_to_user)
        elif self.messages[-1]["role"] == "user":
            raise ValueError("two user messages in a row")
        else:
            self._append("template", self.chat.assistant_to_user)
        self._append("user", self.chat.encode(text + self.chat.user_tail))
        self._append("template", self.chat.user_to_assistant)
        self.messages.append({"role": "user", "content": text})

    def extend(self, turns: FormattedTurns) -> None:
        """Append what a program says, which opens the assistant's turn."""
        for author, ids in turns.parts:
            self._append(author, ids)
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


def _control_names(tokenizer: Any) -> dict[int, str]:
    """Control tokens by id: special and added ones. Single letters and blanks, which some vocabularies add, are not."""
    known = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    names = {i: str(tokenizer.convert_ids_to_tokens(i)) for i in known}
    return {i: name for i, name in names.items() if len(name.strip()) > 1}
