"""Text and JSON from outside, as it can be stored and sent on; short answers as the published scorers compare them."""

from __future__ import annotations

import json
import re
import string
from typing import Any

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")
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
