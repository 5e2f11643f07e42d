"""What is written down of a piece of evidence, and the key of the entity that it is found under."""

from __future__ import annotations

import re
import unicodedata

from ratchet.core.records import Passage, Record, content_key
from ratchet.core.words import without_invisible

ARTICLE = re.compile(r"^(a|an|the) (?=.)", re.IGNORECASE)
PLAIN = str.maketrans({"'": "", "’": "", "`": "", "\N{MINUS SIGN}": "-", "\N{EN DASH}": "-"})
"""Apostrophes vanish, and one sign stands for all that are written for a minus."""
DOT = re.compile(r"(?<=[^\W\d])\.|\.(?!\d)")
"""But not that of 3.5 and .5, which are other numbers than 35 and 5."""
THOUSANDS = re.compile(r"(?<![\w.,])-?\d{1,3}(?:,\d{3})+(?![\d,])")
INITIAL = re.compile(r"(\b[^\W\d_]\.)\s+(?=[^\W\d_]\.)")
"""Before another one: J. K. is J.K."""
NUMBER_SIGN = re.compile(r"(?<!\w)-(?=\.?\d)|\.(?=\d)|(?<=\d)[%‰]|#")
"""Punctuation that makes another number or name: a minus, the point of a fraction, a percent sign, and C#."""
LONGEST_ACRONYM = 4


def entity_key(name: str) -> str:
    """The entity behind a name: case, blanks, punctuation and a leading article make no other entity.

    Signs stay (C, C++ and C# differ; 5, -5 and 5% too), and so do accents. A word of two to four letters that is all
    in capitals is an acronym and another entity than the word: WHO is not The Who. Empty where the name has no letter,
    number or sign.
    """
    text = DOT.sub("", INITIAL.sub(r"\1", without_invisible(name).translate(PLAIN)))
    text = THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    text = re.sub(r"(?<=\d)\s+(?=[%‰])", "", text)
    signs = {sign.start() for sign in NUMBER_SIGN.finditer(text)}
    kept = "".join(c if i in signs or unicodedata.category(c)[0] in "LMNS" else " " for i, c in enumerate(text))
    key = ARTICLE.sub("", " ".join(kept.split()))
    return key if key.isalpha() and key.isupper() and 2 <= len(key) <= LONGEST_ACRONYM else key.casefold()


class EvidenceRecord(Record):
    """One passage that one question left under its entities: a line of a segment. Lines never change."""

    scope: str
    entities: tuple[str, ...]
    """Keys."""
    passage: Passage
    text: str
    """What it was looked up for, such as the claim."""
    question_id: str
    time: float
    """Unix time."""
    place: int = 0
    """Among the passages left at once, the first being the best."""
    writer: str = ""
    """The segment that it was first written to: machine, process and a random part."""

    def content(self) -> str:
        """Equal passage text, equal evidence, whoever found it and wherever."""
        return content_key(self.passage.text)

    def order(self) -> tuple[float, int, str, str, str, str]:
        """From old to new; the same everywhere, whatever was read first."""
        return self.time, -self.place, self.writer, self.question_id, self.passage.id, self.text
