"""Chat messages of a program, tools included, in the words of a model's own chat template.

A system of ours speaks in turns of system, user and assistant, for which `ChatFormat` has wrappers. A program sends
messages in any order, with tools, their calls and their results. Here the template itself writes what is between them,
around sentinels, as it does for the wrappers; what users, documents and tools say is encoded with control tokens split.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.chat import ChatFormat
from inference.rendering import SENTINEL, render_messages
from inference.token_format import TokenFormat
from inference.turns import AUTHORS, ChatTurn, FunctionCall, Part
from ratchet.errors import UserError
from ratchet.records import Author
from ratchet.text import storable_value

CALL_ID = "call{:05d}"
"""Nine letters and digits: some templates take no other ids."""


def format_turns(
    chat: TokenFormat,
    turns: Sequence[ChatTurn],
    tools: Sequence[Mapping[str, Any]] = (),
    continues: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> list[Part]:
    """The messages as the template writes them, up to where the assistant's turn begins.

    `continues`: they follow an assistant's turn that has ended, whose ids are there; else they open a dialogue, for
    which the template names the `tools`. UserError where the template refuses such messages.
    """
    marks = [SENTINEL.format(f"m{number}") if turn.text else "" for number, turn in enumerate(turns)]
    messages = [template_message(chat, turn, mark) for turn, mark in zip(turns, marks, strict=True)]
    if continues:
        text = _after_assistant(chat, messages, variables)
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
    """Ids of the template's own text, control tokens and all."""
    return tuple(chat.tokenizer.encode(text, add_special_tokens=False))


def harmless(chat: TokenFormat, value: Any) -> Any:
    """JSON without control tokens in its texts, since the template writes them among its own."""
    return json.loads(chat.escape_control_tokens(json.dumps(value, ensure_ascii=False)))


def template_message(chat: TokenFormat, turn: ChatTurn, text: str) -> dict[str, Any]:
    """A turn as templates take it, with `text` in the place of its own."""
    message: dict[str, Any] = {"role": turn.role, "content": text}
    if turn.calls:
        message["tool_calls"] = [_template_call(*harmless(chat, [c.name, c.value, c.id])) for c in turn.calls]
    if turn.role == "tool":
        message["tool_call_id"] = harmless(chat, turn.answers)
    return message


def _template_call(name: str, arguments: Any, id: str) -> dict[str, Any]:
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


def _after_assistant(chat: TokenFormat, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any] | None) -> str:
    """What the template writes behind the end-of-turn token of an assistant's turn that these messages follow."""
    mark = SENTINEL.format("a")
    said: dict[str, Any] = {"role": "assistant", "content": mark}
    ids = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    if ids:
        said = {"role": "assistant", "content": "", "tool_calls": [_template_call(mark, {}, id) for id in ids]}
    text = render_messages(
        chat.tokenizer,
        [{"role": "user", "content": SENTINEL.format("u")}, said, *messages],
        generation=True,
        variables=variables,
    )
    _, found, text = text.rpartition(mark)
    _, ended, text = text.partition(chat.decode([chat.end_of_turn]))
    if not found or not ended:
        raise UserError("the model's chat template does not end an assistant's turn before these messages")
    return text


@dataclass(frozen=True)
class CallForm:
    """How a model's chat template writes a tool's call: a mark, a JSON object with name and arguments, a closing mark.

    Hermes, Qwen and SmolLM3: <tool_call>{"name", "arguments"}</tool_call>. Llama 3: {"name", "parameters"} alone.
    Mistral: [TOOL_CALLS] and a list of them.
    """

    mark: str
    """Empty where the object is all of the turn."""
    closing: str
    key: str
    """Of the arguments."""

    @classmethod
    def of(cls, chat: ChatFormat) -> CallForm | None:
        """The form of a model's template; None where it takes no tools, or calls are no JSON."""
        if chat.is_text:
            return None
        name, asked = SENTINEL.format("n"), {"role": "user", "content": SENTINEL.format("u")}
        offered = {"type": "function", "function": {"name": name, "description": "", "parameters": {}}}
        call = {"role": "assistant", "content": "", "tool_calls": [_template_call(name, {"a": 1}, CALL_ID.format(0))]}
        try:
            if name not in render_messages(chat.tokenizer, [asked], tools=[offered]):
                return None
            opening = render_messages(chat.tokenizer, [asked], generation=True)
            text = render_messages(chat.tokenizer, [asked, call])
        except UserError:
            return None
        text = text[len(opening) :] if text.startswith(opening) else text.partition(SENTINEL.format("u"))[2]
        found, end = _object_with(text, name)
        key = next((key for key, value in found.items() if value in ({"a": 1}, '{"a": 1}')), None)
        if key is None:
            return None
        mark = text[: text.index(name)].rpartition("{")[0].strip().rstrip("[").strip()
        closing = text[end:].partition(chat.decode([chat.end_of_turn]))[0].strip().lstrip("]").strip()
        return cls(mark, closing, key)

    def read(self, text: str) -> tuple[str, tuple[FunctionCall, ...]]:
        """(what is said before the calls, the calls) of a model's turn. ValueError where a call cannot be read."""
        before, found, rest = text.partition(self.mark) if self.mark else ("", "", text)
        if self.mark and not found:
            return text, ()
        calls = list[FunctionCall]()
        while rest := rest.strip():
            try:
                value, end = json.JSONDecoder().raw_decode(rest)
                calls += [self._call(one, len(calls)) for one in (value if isinstance(value, list) else [value])]
            except (ValueError, RecursionError) as error:
                if not self.mark and not calls:
                    return text, ()
                raise ValueError(f"a tool's call cannot be read ({error})") from None
            rest = rest[end:].strip().removeprefix(self.closing).strip()
            if rest and not (self.mark and rest.startswith(self.mark)):
                raise ValueError(f"{rest[:50]!r} follows a tool's call")
            rest = rest.removeprefix(self.mark)
        if not calls:
            raise ValueError("no tool's call follows its mark")
        return before.strip(), tuple(calls)

    def _call(self, value: Any, number: int) -> FunctionCall:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or self.key not in value:
            raise ValueError(f"expected an object with name and {self.key}")
        return FunctionCall.of(value["name"], storable_value(value[self.key]))


def _object_with(text: str, name: str) -> tuple[dict[str, Any], int]:
    """(the innermost JSON object around a name, where it ends); ({}, 0) where there is none."""
    at = text.find(name)
    while at > 0 and (at := text.rfind("{", 0, at)) >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text[at:])
        except ValueError:
            continue
        if isinstance(value, dict) and value.get("name") == name:
            return value, at + end
    return {}, 0
