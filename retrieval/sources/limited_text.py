"""Text from tools and documents as plain text, and no more than so much of it. Unlike `web.reading.plain`, blanks stay:
a passage is what its index holds."""

from __future__ import annotations

from ratchet import text as outside

CUT = " [cut]"


def plain_line(text: str, most: int) -> str:
    """For titles, names and messages."""
    return _cut(outside.plain_line(text[: 2 * most]), most)


def plain_text(text: str, most: int) -> str:
    return _cut(outside.plain_text(text[: 2 * most]), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(0, most - len(CUT))] + CUT[:most]
