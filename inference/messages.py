"""Chat messages of a program, tools included, in the words of a model's own chat template.

A system of ours speaks in turns of system, user and assistant, for which `ChatFormat` has wrappers. A program sends
messages in any order, with tools, their calls and their results. Here the template itself writes what is between them,
around sentinels, as it does for the wrappers; what users, documents and tools say is encoded with control tokens split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.core.errors import UserError
from ratchet.core.records import Author
from ratchet.inference.rendering import SENTINEL, render_messages
from ratchet.inference.token_format import TokenFormat
from ratchet.inference.tool_calls import template_call
from ratchet.inference.turns import AUTHORS, ChatTurn, Part


def format_turns(
    chat: TokenFormat, turns: Sequence[ChatTurn], tools: Sequence[Mapping[str, Any]] = (), continues: bool = False
) -> list[Part]:
    """The messages as the template writes them, up to where the assistant's turn begins.

    `continues`: they follow an assistant's turn that has ended, whose ids are there; else they open a dialogue, for
    which the template names the `tools`. UserError where the template refuses such messages.
    """
    marks = [SENTINEL.format(f"m{number}") if turn.text else "" for number, turn in enumerate(turns)]
    messages = [template_message(chat, turn, mark) for turn, mark in zip(turns, marks, strict=True)]
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
    """Ids of the template's own text, control tokens and all."""
    return tuple(chat.tokenizer.encode(text, add_special_tokens=False))


def harmless(chat: TokenFormat, value: Any) -> Any:
    """JSON without control tokens and marks of messages in its texts, since the template writes them among its own."""
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
    """What the template writes behind the end-of-turn token of an assistant's turn that these messages follow."""
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
