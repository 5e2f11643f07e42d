"""Text and JSON from outside, as it can be stored, sent on and shown on a terminal; short answers as they are
compared."""

from __future__ import annotations

import json
import math
import re
import string
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import regex

from ratchet.core.words import separate_unspaced, without_invisible

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")
GROUPS = re.compile(r"(?<=\d)(?<!(?<!\d)0)[,'](?=(?:\d{2,3}[,'])*\d{3}(?!\d))")
CHAIN = re.compile(r"\d+(?:[.,]\d+)+")
BARE_POINT = re.compile(r"(?<![\w.,])\.(?=\d)")
SIGNS = f"[{re.escape(string.punctuation)}]"
INSIDE = re.compile(rf"((?<=\d)(?:\^[-+]?|[._])(?=\d)|(?<!\w)-(?=\d))|((?<=\d){SIGNS}+(?=\d))|{SIGNS}")
"""ASCII punctuation: in a number, between two numbers, and all other."""
ENDS = regex.compile(r"(?<!\S)(?:(?!-\d)[\p{P}\p{S}])+|[\p{P}\p{S}]+(?!\S)")
TYPOGRAPHY = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b\u2039\u203a\u02bb\u02bc\u2032\u00b4", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
)
"""Apostrophes (and letters and accents that stand for one), quotation marks, and dashes (and the minus sign)."""
COMMANDS = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
"""Escape sequences that a terminal executes: colours, cursor movements, window titles, the clipboard."""
BREAKS = "\n\r\x0b\x0c\x85\u2028\u2029"
JOINERS = "\u200c\u200d"
"""Invisible, but scripts and emoji need them."""
CUT = " [cut]"
"""Ends a text that was shortened."""
LONGEST_WORD = 50
MAX_LEVELS = 100
"""Levels of JSON inside each other: more than any answer needs, and fewer than pydantic or Python can write."""


def published_answer(text: str) -> str:
    """Lower-case the text, delete ASCII punctuation and articles and collapse blanks, in the published scorers'
    order."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def fold_typography(text: str) -> str:
    """Return one spelling of what reads the same: composed letters and plain digits (Unicode's NFKC), and the
    apostrophes, quotation marks and dashes of ASCII, without invisible characters."""
    return text if text.isascii() else without_invisible(text.translate(TYPOGRAPHY)).translate(TYPOGRAPHY)


def spell_numbers(text: str) -> str:
    """Return the text with one spelling of each number, in which only decimals have a point: 1,000 and 1'000 are 1000,
    0,5 and .5 are 0.5, and the points of 12.03.2024 become hyphens. Zeros stay: version 3.10 is not 3.1."""
    return CHAIN.sub(_spelled, BARE_POINT.sub("0.", GROUPS.sub("", text)))


def _spelled(number: re.Match[str]) -> str:
    first, *others = re.split("[.,]", number[0])
    if len(others) > 1 and all(len(part) == 3 for part in others):  # 1.000.000
        return "".join((first, *others))
    if all(len(part) == 3 for part in others[:-1]):  # 1.5, or 1.000,5
        return f"{''.join((first, *others[:-1]))}.{others[-1]}"
    return "-".join((first, *others))  # a date, or a version


def plain_answer(text: str) -> str:
    """Normalise as `published_answer`, of the text's one spelling, without making another number: 1.5 is not 15, nor -5
    5, 10⁶ or 10^6 106, and 1/2 12."""
    plain = _without_punctuation(fold_typography(text).lower())
    return " ".join(ARTICLES.sub(" ", plain).split())


def _without_punctuation(text: str) -> str:
    return INSIDE.sub(lambda found: found[1] or ("-" if found[2] else ""), spell_numbers(text))


def normalise_answer(text: str) -> str:
    """Normalise as `plain_answer`, without any punctuation and symbols at the ends of words, and with the words of
    scripts that have no blanks apart (core/words.py). Where that leaves nothing, as of "A" or "+", articles stay, and
    punctuation alone too."""
    lower = fold_typography(text).lower()
    return spaced_answer(plain_answer(text)) or spaced_answer(_without_punctuation(lower)) or lower.strip()


def spaced_answer(plain: str, pairs: bool = True) -> str:
    """Return the words of a plain answer without punctuation at their ends; those of scripts without blanks are pairs
    of letters, or single ones."""
    return " ".join((plain if plain.isascii() else ENDS.sub("", separate_unspaced(plain, pairs))).split())


Normalise = Callable[[str], str]
NORMALISATIONS: Mapping[str, Normalise] = {"unicode": normalise_answer, "published": published_answer}
"""The values of `rewards.normalisation`."""


def replace_surrogates(text: str) -> str:
    """Return the text with '?' for every half of a surrogate pair, which JSON can hold and UTF-8 cannot."""
    return text.encode(errors="replace").decode()


def read_json(text: str | bytes, finite: bool = True) -> Any:
    """Read JSON that somebody else wrote, with valid texts. Raises ValueError for whatever is wrong with it; not for
    numbers like NaN where `finite` is False."""
    try:
        return storable_value(json.loads(text), finite)
    except RecursionError:
        raise ValueError(f"more than {MAX_LEVELS} levels deep") from None


def storable_value(value: Any, finite: bool = True, levels: int = MAX_LEVELS) -> Any:
    """Return a decoded value with valid texts. Raises ValueError where it is too deep or, where `finite`, has a number
    that JSON has no form for: Python's decoder reads NaN, Infinity and 1e999."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if finite and isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number in JSON")
    if not isinstance(value, list | dict):
        return value
    if not levels:
        raise ValueError(f"more than {MAX_LEVELS} levels deep")
    if isinstance(value, list):
        return [storable_value(inner, finite, levels - 1) for inner in value]
    return {replace_surrogates(key): storable_value(inner, finite, levels - 1) for key, inner in value.items()}


def plain_text(text: str) -> str:
    """Return text from outside as a terminal can show it.

    Terminal commands, control characters, invisible ones (text direction, tags) and half surrogate pairs are gone;
    lines, tabs and blanks stay. What the words say is left alone.
    """
    text = COMMANDS.sub("", text.replace("\r\n", "\n"))
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def plain_line(text: str) -> str:
    """Return `plain_text` in one line, with single blanks."""
    return " ".join(plain_text(text).split())


def short_line(text: str, max_characters: int = 300) -> str:
    """`plain_line` for titles, names and messages from outside: at most so many characters, ending in CUT if cut."""
    return _shortened(plain_line(text[: 2 * max_characters]), max_characters)


def short_text(text: str, max_characters: int) -> str:
    """`plain_text` of at most so many characters, ending in CUT if cut."""
    return _shortened(plain_text(text[: 2 * max_characters]), max_characters)


def shortened(text: str, max_characters: int) -> str:
    """Cut to so many characters, at a word, with an ellipsis where something is missing. A run of more than
    LONGEST_WORD characters is no word, as in scripts without blanks, and is cut anywhere."""
    if len(text) <= max_characters:
        return text
    cut, whole = text[: max_characters - 1], text[max_characters - 1].isspace()
    words = cut.rsplit(None, 1)
    return (cut if whole or len(words) < 2 or len(words[1]) > LONGEST_WORD else words[0]).rstrip() + "…"


def _shortened(text: str, max_characters: int) -> str:
    return text if len(text) <= max_characters else text[: max(0, max_characters - len(CUT))] + CUT[:max_characters]


def _visible(character: str) -> str:
    if character in BREAKS:
        return "\n"
    if character.isprintable() or character in "\t" + JOINERS:
        return character
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) in ("Cc", "Cf", "Cs") else character
