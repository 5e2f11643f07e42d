"""The text of PDF pages: raised and lowered numbers stay apart from the text before them, and words that a line's end
divides are whole."""

from __future__ import annotations

from math import hypot
from typing import Any

import regex

from ratchet.core.tags import PlainWriter
from ratchet.core.words import nfkc

SMALLER = 0.85
"""A superscript or subscript is at most this share of the size of the text before it."""
SAME_LINE = 0.05
"""Of the size: a baseline that is this near is the same."""
WORD = regex.compile(r"[\p{L}\p{M}]+")
HYPHEN = regex.compile(r"(?<before>[\p{L}\p{M}]+)(?<hyphen>[-\u2010\u00ad])[^\S\n]*\n\s*(?<after>[\p{L}\p{M}]+)")
NUMBER_HYPHEN = regex.compile(
    r"(?<=[\p{L}\p{N}][-\u2010])[^\S\n]*\n\s*(?=\p{N})|(?<=\p{N}[-\u2010])[^\S\n]*\n\s*(?=\p{L})"
)
COMPOUNDS = frozenset({"self", "well"})
"""What keeps its hyphen wherever it stands before one."""
SUSPENDED = frozenset({"and", "bis", "oder", "or", "to", "und"})
"""What follows a hyphen that stands for a word: "short- and long-term"."""


def page_text(page: Any) -> str:
    """The text of a page of pypdf."""
    pieces: list[tuple[str, float, float]] = []

    def visit(text: str, outer: list[float], inner: list[float], font: Any, size: float) -> None:
        if text:
            scale = hypot(inner[2], inner[3]) * hypot(outer[2], outer[3])
            pieces.append((text, size * scale, inner[4] * outer[1] + inner[5] * outer[3] + outer[5]))

    text = str(page.extract_text(visitor_text=visit))
    if "".join(piece for piece, _, _ in pieces).split() != text.split():
        return text
    writer = PlainWriter()
    base_size = base_height = 0.0
    script = ""  # of which several pieces may be drawn, a sign and a number
    raised: bool | None = None
    before = " "
    for piece, size, height in [*pieces, ("", 0.0, 0.0)]:
        level = height - base_height
        smaller = 0 < size <= SMALLER * base_size and not piece[0].isspace() and (script or not before[-1].isspace())
        now = level > -SAME_LINE * base_size if smaller else None
        if script and now != raised:
            writer.raised = raised
            writer.piece(script)
            writer.end_script()
            script = ""
        if not smaller or (not script and abs(level) <= SAME_LINE * base_size and piece[0].isalpha()):  # small capitals
            if not smaller:
                base_size, base_height = size, height
            writer.piece(piece)
        else:
            script, raised = script + piece, now
        before = piece
    return writer.text


def join_hyphenated(text: str) -> str:
    """The text with the words whole that end a line with a hyphen.

    The hyphen goes where it is a soft one, where the word without it stands elsewhere in the text, and where the part
    before it is no word of the text. Otherwise it belongs to the word, and only the line's end goes.
    """
    words = {word.casefold() for word in WORD.findall(nfkc(HYPHEN.sub(" ", text)))}

    def whole(match: regex.Match[str]) -> str:
        before, after = match["before"], match["after"]
        first, joined = nfkc(before).casefold(), nfkc(before + after).casefold()
        if match["hyphen"] == "\u00ad" or joined in words:
            return f"{before}{after}"
        if after in SUSPENDED:
            return f"{before}- {after}"
        named = after[0].isupper() and not before.isupper()
        if len(before) == 1 or named or first in words or first in COMPOUNDS:
            return f"{before}-{after}"
        return f"{before}{after}"

    return NUMBER_HYPHEN.sub("", HYPHEN.sub(whole, text))
