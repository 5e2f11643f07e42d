"""From text to words, for everything that compares texts by words: the index, its queries, and rewards.

- Case is folded after NFKC, so that composed and decomposed, full-width and upper-case letters compare equal. H₂O is
  H2O; a power, an index or a fraction stays apart from the number before it (core/raised.py).
- A word is a run of letters and digits. Its combining marks (Unicode's Mn and Mc) belong to it: vowel signs, points.
- Invisible characters vanish (Cf and default ignorables): soft hyphens, zero-width ones, variation selectors.
- Han, Hiragana, Katakana, Thai, Lao, Khmer, Myanmar and the Tai scripts are written without blanks between words, and
  Hangul with particles behind a word's end. Of a run of their letters every two neighbours are a word, and a letter
  that stands alone is one, as Lucene's CJKBigramFilter does it.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from operator import add

import regex

from ratchet.core.raised import separate_numbers

WORD_RULES = 3
"""Raise it when the words of a text change: an index of words that were split by other rules is refused."""

LETTER = r"\p{L}\p{N}"
MARK = r"\p{Mn}\p{Mc}"
WORD = regex.compile(f"[{LETTER}][{LETTER}{MARK}]*")
"""In a text of `spaced_words`."""
MARKS = regex.compile(f"[{MARK}]+")
COMPOSES = regex.compile(rf"[{MARK}\u1160-\u11ff]")
"""What may become one character with the one before it: marks, and the parts of a Hangul syllable."""
LONG_MARKS = regex.compile(r"([\p{M}\uff9e\uff9f]{30})[\p{M}\uff9e\uff9f]+")
"""The two letters become marks in NFKC."""
INVISIBLE = regex.compile(r"[\p{Cf}\p{Default_Ignorable_Code_Point}]+")
NAMES = "Han Hiragana Katakana Hangul Thai Lao Khmer Myanmar Tai_Le New_Tai_Lue Tai_Tham Tai_Viet"
SCRIPTS = "".join(rf"\p{{{name}}}" for name in NAMES.split())
UNSPACED = rf"[[{SCRIPTS}ー]&&[\p{{L}}\p{{Nl}}]]"
"""A letter of a script whose words run together."""
UNSPACED_LETTER = regex.compile(f"{UNSPACED}[{MARK}]*", regex.VERSION1)
UNSPACED_RUN = regex.compile(rf"{UNSPACED}[[{SCRIPTS}ー{MARK}]&&[\p{{L}}\p{{Nl}}{MARK}]]*", regex.VERSION1)
BEYOND_LATIN = regex.compile(r"[\u0300-\U0010ffff]+")
SPECIAL = regex.compile(f"{INVISIBLE.pattern}|{UNSPACED}", regex.VERSION1)
ASCII_WORD = re.compile("[a-z0-9]+")
ASCII = bytes(range(128))
UTF_8 = ("utf-8", "surrogatepass")


def split_words(text: str) -> list[str]:
    """The words of a text in order, repeats included."""
    return ASCII_WORD.findall(text.lower()) if text.isascii() else WORD.findall(spaced_words(text).decode(*UTF_8))


def spaced_words(text: str) -> bytes:
    """The folded text in UTF-8, with blanks between the words of scripts that have none: its words are the runs of
    WORD."""
    data = text.encode(*UTF_8)
    if text.isascii():
        return data.lower()
    # Few texts have more than a few different characters beyond ASCII, and most of those stay as they are.
    beyond = "".join(set(data.translate(None, ASCII).decode(*UTF_8)))
    if all(map(_stays, beyond)):
        return data.lower()
    if SPECIAL.search(nfkc(beyond)):
        return separate_unspaced(fold_text(text)).encode(*UTF_8)
    return _fold_case(nfkc(text)).encode(*UTF_8)


@cache
def _stays(character: str) -> bool:
    """Whether a character beyond ASCII stays as it is, whatever stands around it."""
    return not COMPOSES.match(character) and separate_unspaced(fold_text(character)) == character


def padded_words(text: str) -> str:
    """The words with a blank before and after each, so that `in` finds runs of whole words.

    Here a letter of a script without blanks is a word by itself, so that no run of letters is missed.
    """
    return f" {' '.join(WORD.findall(separate_unspaced(fold_text(text), pairs=False)))} "


def fold_text(text: str) -> str:
    """The text for comparison without regard to case: NFKC, case-folded, without invisible characters."""
    return _fold_case(without_invisible(text))


def _fold_case(text: str) -> str:
    # The capital İ of Turkish is an i: folding leaves the dot of it as a mark.
    return nfkc(text.casefold().replace("i\u0307", "i"))


def without_invisible(text: str) -> str:
    """The text in NFKC without invisible characters."""
    # NFKC makes some invisible characters of others. Before it, none may part a number from its power.
    return nfkc(INVISIBLE.sub("", nfkc(INVISIBLE.sub("", text))))


def nfkc(text: str) -> str:
    """The text in NFKC, with its numbers apart. Of more than 30 marks in a row, which no language has (Unicode Standard
    Annex 15, stream-safe text), the first 30 are kept: the time that normalising takes grows with the square of their
    number."""
    return text if text.isascii() else unicodedata.normalize("NFKC", separate_numbers(LONG_MARKS.sub(r"\1", text)))


def separate_unspaced(text: str, pairs: bool = True) -> str:
    """The text with blanks between the words of scripts that write none: pairs that overlap, or single letters."""

    def words(run: regex.Match[str]) -> str:
        letters = UNSPACED_LETTER.findall(run[0]) if MARKS.search(run[0]) else run[0]
        return f" {' '.join(map(add, letters, letters[1:]) if pairs and len(letters) > 1 else letters)} "

    # A range is searched ten times as fast as a script.
    return BEYOND_LATIN.sub(lambda part: UNSPACED_RUN.sub(words, part[0]), text)
