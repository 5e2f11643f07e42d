"""Superscripts, subscripts and the like as plain text, so that no two numbers become another one: 10⁶ is 10^6.

Unicode's NFKC makes 106 of 10⁶, 11⁄2 of 1½ and 12 of ①②. H₂O, m² and Ca²⁺ are written as H2O, m2 and Ca2+ all the same.
"""

from __future__ import annotations

import regex

RAISED, LOWERED = "¹²³⁰⁴-⁹", "₀-₉"
ENCLOSED = "¼-¾⅐-⅟↉①-⑳⒈-⒛⓪㉑-㉟㊱-㋋㍘-㍰㍸㍹㎟-㎦㎨㎯㏠-㏾🄀-🄊"
"""The other characters that are no digits and whose NFKC begins or ends with one: fractions, units, in circles."""
LETTERS = 3
"""Letters in a row that are a word, whose raised number is a footnote or a power; fewer are a unit or an element."""
AFTER_WORD = rf"(?<=[\p{{L}}\p{{M}}]{{{LETTERS}}})"
STANDS_FOR_DIGITS = regex.compile(f"[{RAISED}{LOWERED}{ENCLOSED}™℠]")
POWER = regex.compile(
    rf"(?<=[\p{{Nd}}{LOWERED}{ENCLOSED}])(?=[⁺⁻]?[{RAISED}])(?![{RAISED}]+\u2044)|{AFTER_WORD}(?=[{RAISED}™℠])"
)
INDEX = regex.compile(rf"(?<=[\p{{Nd}}{RAISED}{ENCLOSED}])(?=[{LOWERED}])(?<!\u2044)")
NEXT = regex.compile(
    rf"(?<=[{RAISED}{LOWERED}{ENCLOSED}])(?=[\p{{Nd}}{ENCLOSED}])|(?<=\p{{Nd}})(?=[{ENCLOSED}]|[{RAISED}]+\u2044)"
)


def separate_numbers(text: str) -> str:
    """The text with "^" before a power, "_" before an index and a blank before another number, wherever NFKC would
    join them to the number before. A raised number after a word gets a "^" too."""
    if text.isascii() or not STANDS_FOR_DIGITS.search(text):
        return text
    return NEXT.sub(" ", INDEX.sub("_", POWER.sub("^", text)))


def script_sign(before: str, script: str, raised: bool) -> str:
    """What stands between a text and the superscript or subscript of mark-up that follows it: "^", "_" or nothing.

    H and 2 make H2, 10 and 6 make 10^6, 2 and nd make 2nd, a word and its footnote's mark word^a.
    """
    if not raised:
        return "_" if ENDS_IN_NUMBER.search(before) and BEGINS_WITH_NUMBER.match(script) else ""
    if ENDS_IN_NUMBER.search(before):
        return "^" if SIGNED_NUMBER.match(script) else ""
    return "^" if ENDS_IN_WORD.search(before) and MARK.match(script) else ""


def parts_numbers(before: str, after: str) -> bool:
    """Whether one text ends and the other begins with a digit, so that together they would be another number."""
    return bool(ENDS_IN_NUMBER.search(before) and BEGINS_WITH_NUMBER.match(after))


NUMBER = rf"[\p{{Nd}}{RAISED}{LOWERED}{ENCLOSED}]"
ENDS_IN_NUMBER = regex.compile(rf"{NUMBER}\Z")
BEGINS_WITH_NUMBER = regex.compile(NUMBER)
SIGNED_NUMBER = regex.compile(rf"[+\-\u2212\u2013\u00b1⁺⁻]?{NUMBER}")
ENDS_IN_WORD = regex.compile(rf"{AFTER_WORD}\Z")
MARK = regex.compile(r"[\p{L}\p{N}™℠]")
