"""The common part of chat formats whose model's tokenizer is known: text that cannot forge a control token, and the
messages of a program, which come in any order with tools, their calls and their results.

There the template itself writes what is between messages, around sentinels that stand for them; what users, documents
and tools say is encoded with control tokens split.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from ratchet.core.errors import UserError
from ratchet.core.records import Author
from ratchet.core.text import replace_surrogates
from ratchet.inference.completion import AUTHORS, ChatTurn, Part
from ratchet.inference.tokenizer import SENTINEL, render_messages
from ratchet.inference.tool_calls import OTHER_ENDS, CallForm, find_form, template_call

JOIN = "\n\n"
"""Between messages that are joined."""


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
    """Variables of the template, such as enable_thinking."""
    folds_system: bool = False
    """True if the system message is put before the first user message, since the template takes none."""
    lists_content: bool = False
    """True if the template takes a message's content as a list of parts alone."""
    is_text: ClassVar[bool] = False

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode untrusted text: no control token is among the ids. Lone surrogates become question marks."""
        text = replace_surrogates(text)
        found = self._encode(text, split=False)
        if self.control_ids.isdisjoint(found):
            return tuple(found)
        found = self._encode(text)
        if self.control_ids.isdisjoint(found):
            return tuple(found)
        # Added tokens that are not marked special are not split by the tokenizer: cut each behind its first letter.
        found = [i for piece in cut_control_tokens(text, self.control_pattern) for i in self._encode(piece)]
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
        return len(ids)

    def decode(self, ids: Sequence[int]) -> str:
        # Not transformers' own: it may drop blanks before punctuation, and looks at every id in Python first, which
        # takes longer than all the rest.
        return str(self.tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def calls(self) -> CallForm | None:
        return find_form(self.tokenizer, self.decode([self.end_of_turn]), self.control_pattern, self.variables)

    @cached_property
    def alternates(self) -> bool:
        """Whether user messages in a row are joined, since the template demands that roles alternate."""
        return not self._takes("user", "user")

    @cached_property
    def places_system(self) -> bool:
        """Whether the template shows a system message behind others in its place."""
        late = self._takes("user", "system") and self._takes("user", "assistant", "user", "system")
        return late and not self.alternates

    def _takes(self, *roles: str) -> bool:
        """Return whether the template shows messages of these roles in this order."""
        marks = [SENTINEL.format(f"m{number}") for number in range(len(roles))]
        contents = [[{"type": "text", "text": mark}] if self.lists_content else mark for mark in marks]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        with suppress(UserError):
            found = [*map(render_messages(self.tokenizer, messages, True, variables=self.variables).find, marks)]
            return found[0] >= 0 and found == sorted(found)
        return False

    def joined(self, turns: Sequence[ChatTurn], continues: bool = False) -> list[list[ChatTurn]]:
        """The turns of each message. A system message that has no place in the template behind others is a user's.
        `continues`: others come before."""
        groups: list[list[ChatTurn]] = []
        for number, turn in enumerate(turns):
            if turn.role == "system" and (number or continues) and not self.places_system:
                turn = replace(turn, role="user")
            last = groups[-1][-1].role if groups else None
            if turn.role == "user" and (
                (self.folds_system and last == "system") or (last == "user" and self.alternates)
            ):
                groups[-1].append(turn)
            else:
                groups.append([turn])
        return groups

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        names = {*OTHER_ENDS, self.calls.end if self.calls else ""}
        others = {i for i in self.control_ids if self.tokenizer.convert_ids_to_tokens(i) in names}
        return (self.end_of_turn, *sorted(others - {self.end_of_turn}))

    @cached_property
    def vocabulary(self) -> int:
        return max(self.tokenizer.get_vocab().values()) + 1

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits of the tokenizer and its template: equal ids for equal texts, equal digest."""
        template = str(self.tokenizer.chat_template)
        return hashlib.sha256((self.tokenizer.backend_tokenizer.to_str() + template).encode()).hexdigest()[:16]


def control_names(tokenizer: Any) -> dict[int, str]:
    """Return control tokens by id: special and added ones. Single letters and blanks, which some vocabularies add, are
    not."""
    known = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    names = {i: str(tokenizer.convert_ids_to_tokens(i)) for i in known}
    return {i: name for i, name in names.items() if len(name.strip()) > 1}


def control_pattern(names: dict[int, str]) -> re.Pattern[str]:
    """Compile a pattern that finds control tokens in text, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(names.values(), key=len, reverse=True))) or r"(?!)")


def cut_control_tokens(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the pieces of a text that is cut behind the first letter of every control token, which are found by
    `control_pattern`."""
    at = 0
    while match := pattern.search(text, at):
        yield text[at : match.start() + 1]
        at = match.start() + 1
    yield text[at:]


# Messages


def format_turns(
    chat: TokenFormat, turns: Sequence[ChatTurn], tools: Sequence[Mapping[str, Any]] = (), continues: bool = False
) -> list[Part]:
    """Return the messages as the template writes them, up to where the assistant's turn begins.

    `continues`: they follow an assistant's turn that has ended, whose ids are there; else they open a dialogue, for
    which the template names the `tools`. Raises UserError where the template refuses such messages.
    """
    groups = chat.joined(turns, continues)
    turns = [turn for group in groups for turn in group]
    marks = [SENTINEL.format(f"m{number}") if turn.text else "" for number, turn in enumerate(turns)]
    rest = iter(marks)
    messages = [template_message(chat, group[-1], JOIN.join(next(rest) for _ in group)) for group in groups]
    if continues:
        text = _after_assistant(chat, messages)
    else:
        text = render_messages(chat.tokenizer, messages, True, tools=harmless(chat, tools))
    pieces: list[Piece] = []
    for turn, mark in zip(turns, marks, strict=True):
        if not mark:
            continue
        before, found, text = text.partition(mark)
        if not found:
            raise UserError(f"the model's chat template does not show the {turn.role} message as it is")
        pieces += [Piece("template", before), Piece(AUTHORS[turn.role], turn.text)]
    return encode_pieces(chat, [*pieces, Piece("template", text)])


@dataclass(frozen=True)
class Piece:
    """A stretch of a rendered prompt: the template's own text, or a message's."""

    author: Author
    text: str


def encode_pieces(chat: TokenFormat, pieces: Sequence[Piece], joins_heading: bool = False) -> list[Part]:
    """Token ids: control tokens are read in the template's own text alone. Ordinary text right behind a message is
    encoded together with it, as in the template's own text; with `joins_heading`, that right before it too."""
    parts: list[Part] = []
    rest = list(pieces)
    heading = ""
    while rest:
        piece = rest.pop(0)
        if piece.author == "template":
            text = piece.text
            if joins_heading and rest:
                end = max((found.end() for found in chat.control_pattern.finditer(text)), default=0)
                text, heading = text[:end], text[end:]
            parts.append(("template", template_ids(chat, text)))
            continue
        tail = ""
        if rest and rest[0].author == "template":
            control = chat.control_pattern.search(rest[0].text)
            tail = rest[0].text[: control.start()] if control else ""
            rest[0] = Piece("template", rest[0].text[len(tail) :])
        parts.append((piece.author, chat.encode(heading + piece.text + tail)))
        heading = ""
    return [(author, ids) for author, ids in parts if ids]


def template_ids(chat: TokenFormat, text: str) -> tuple[int, ...]:
    """Encode the template's own text, control tokens and all."""
    return tuple(chat.tokenizer.encode(text, add_special_tokens=False))


def harmless(chat: TokenFormat, value: Any) -> Any:
    """Return JSON without control tokens and marks of messages in its texts, since the template writes them among its
    own."""
    if isinstance(value, str):
        return chat.escape_control_tokens(value.replace(SENTINEL[0], SENTINEL[0] + "\u200b"))
    if isinstance(value, Mapping):
        return {harmless(chat, key): harmless(chat, inner) for key, inner in value.items()}
    return [harmless(chat, inner) for inner in value] if isinstance(value, list | tuple) else value


def with_description(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool with what some templates cannot do without, and OpenAI's API can."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    wanted = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return {**tool, "function": {**function, **{key: value for key, value in wanted.items() if key not in function}}}


def template_message(chat: TokenFormat, turn: ChatTurn, text: str) -> dict[str, Any]:
    """A turn as templates take it, with `text` in the place of its own."""
    message: dict[str, Any] = {"role": turn.role, "content": text}
    if turn.calls:
        as_text = chat.calls is not None and chat.calls.takes_text
        arguments = [call.arguments if as_text else call.value for call in turn.calls]
        message["tool_calls"] = [
            template_call(*harmless(chat, [call.name, given, call.id]))
            for call, given in zip(turn.calls, arguments, strict=True)
        ]
    if turn.role == "tool":
        message["tool_call_id"] = harmless(chat, turn.answers)
    return message


def _after_assistant(chat: TokenFormat, messages: Sequence[dict[str, Any]]) -> str:
    """Return what the template writes behind the end-of-turn token of an assistant's turn that these messages
    follow."""
    mark = SENTINEL.format("a")
    said: dict[str, Any] = {"role": "assistant", "content": mark}
    ids = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    if ids:
        said = {"role": "assistant", "content": "", "tool_calls": [template_call(mark, {}, id) for id in ids]}
    text = render_messages(
        chat.tokenizer,
        [{"role": "user", "content": SENTINEL.format("u")}, said, *messages],
        generation=True,
        variables=chat.variables,
    )
    _, found, text = text.rpartition(mark)
    ended = re.search("|".join(re.escape(chat.decode([i])) for i in chat.end_ids), text)
    if not found or not ended:
        raise UserError("the model's chat template does not end an assistant's turn before these messages")
    return text[ended.end() :]
