"""Text and JSON from outside, as it can be stored, sent on and shown on a terminal; short answers as the published
scorers compare them."""

from __future__ import annotations

import json
import re
import string
import unicodedata
from typing import Any

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")
COMMANDS = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
"""Escape sequences that a terminal executes: colours, cursor movements, window titles, the clipboard."""
BREAKS = "\n\r\x0b\x0c\x85\u2028\u2029"
JOINERS = "\u200c\u200d"
"""Invisible, but scripts and emoji need them."""
DEEPEST = 100
"""Levels of JSON inside each other: more than any answer needs, and fewer than pydantic (255) or Python can write."""


def normalise_answer(text: str) -> str:
    """Lower-case, ASCII punctuation deleted, articles dropped, blanks collapsed, in the published scorers' order."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def whole_text(text: str) -> str:
    """The text with '?' for every half of a surrogate pair: JSON can hold those, and UTF-8, so every file, cannot."""
    return text.encode(errors="replace").decode()


def read_json(text: str | bytes) -> Any:
    """The value of JSON that somebody else wrote, with whole texts. Raises ValueError for whatever is wrong with it."""
    try:
        return _whole(json.loads(text), DEEPEST)
    except RecursionError:
        raise ValueError(f"more than {DEEPEST} levels deep") from None


def _whole(value: Any, levels: int) -> Any:
    if isinstance(value, str):
        return whole_text(value)
    if not isinstance(value, list | dict):
        return value
    if not levels:
        raise ValueError(f"more than {DEEPEST} levels deep")
    if isinstance(value, list):
        return [_whole(inner, levels - 1) for inner in value]
    return {whole_text(key): _whole(inner, levels - 1) for key, inner in value.items()}


def plain_text(text: str) -> str:
    """Text from outside that a terminal and a reader see as it is.

    Terminal commands, control characters, invisible ones (text direction, tags) and half surrogate pairs are gone;
    lines, tabs and blanks stay. What the words say is left alone.
    """
    text = COMMANDS.sub("", text.replace("\r\n", "\n"))
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def plain_line(text: str) -> str:
    """The same in one line, with single blanks."""
    return " ".join(plain_text(text).split())


def _visible(character: str) -> str:
    if character in BREAKS:
        return "\n"
    if character.isprintable() or character in "\t" + JOINERS:
        return character
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) in ("Cc", "Cf", "Cs") else character
