"""Values as question files hold them: numbers and lists as texts, and the lists that a table has to write as text."""

from __future__ import annotations

import ast
import json
import math
import re
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

ITEM = re.compile(
    r"""([\s,]*)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"""
    r"""|None|null|nan|NaN)(?=[\s,'"]|$)""",
    re.DOTALL,
)
"""What parts an item from the one before it in a list that Python or NumPy printed, and the item: a quoted text, or a
number."""
PRINTED = re.compile(r"array\((\[.*\])(?:,\s*dtype=[^\s\[\]]+)?\)|(\[.*\]|\(.*\)|\{.*\})", re.DOTALL)
OPENING = re.compile(r"""\[['"]|array\(\[""")
MISSING = frozenset({"None", "null", "nan", "NaN"})


class Cell(str):
    """The text of a table's cell. A table knows no types, so a list is written as text in it; JSON and Parquet do."""

    __slots__ = ()


def is_missing(value: Any) -> bool:
    """Whether a value says that there is none: null, or the NaN that tables of numbers have in its place."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def as_text(value: Any) -> str:
    """A text as it is, a number in digits, and a date or time of Parquet in ISO 8601: 1912.0, as a column of numbers
    has it beside a null, is 1912, and midnight is its day.

    Raises ValueError for anything else.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, datetime):
        return str(value.date() if value.time() == time() else value)
    if isinstance(value, date | time):
        return str(value)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value):
        return str(int(value)) if value == int(value) else format(Decimal(str(value)), "f")
    raise ValueError(f"expected text, got {json.dumps(value, default=str)[:60]}")


def list_in(text: str) -> list[Any] | None:
    """The list that a text writes: as JSON, or as Python or NumPy print one (['Ada' 'Bo']); None where it is no list.

    Round and curly brackets hold a list only around quoted texts: (0, 1) is an interval. Raises ValueError for square
    brackets, or the beginning of a list of texts, that cannot be read: such a text is not taken for one answer.
    """
    text = text.strip()
    printed = PRINTED.fullmatch(text)
    if not printed and not OPENING.match(text):
        return None
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        items = _printed_list(printed[1] or printed[2]) if printed else None
    if not isinstance(items, list) and text[0] not in "({":
        raise ValueError(
            f"{text[:60]!r} cannot be read as a list; write it as JSON, "
            '["one", "two"], also where it is a single answer in brackets, ["[Ar]"]'
        )
    return items if isinstance(items, list) else None


def _printed_list(text: str) -> list[Any] | None:
    body, between, items, end = text[1:-1], "", list[str](), 0
    while item := ITEM.match(body, end):  # from item to item: a search would read the rest from every quote again
        between += item[1]
        items.append(item[2])
        end = item.end()
    if body[end:].strip(" \t\r\n,") or (
        text[0] in "({" and not ("," in between + body[end:] and all(item[0] in "'\"" for item in items))
    ):
        return None
    try:
        return [None if item in MISSING else ast.literal_eval(item) for item in items]
    except (ValueError, SyntaxError):
        return None
