"""What is written down of a piece of evidence, and the key of the entity that it is found under."""

from __future__ import annotations

import re
import unicodedata

from ratchet.records import Passage, Record, content_key

ARTICLE = re.compile(r"^(a|an|the) (?=.)")
DOT = re.compile(r"(?<!\d)\.|\.(?!\d)")
"""But not the one of 3.5, which is another number than 35."""
APOSTROPHES = str.maketrans("", "", "'’`")


def entity_key(name: str) -> str:
    """The entity behind a name: case, blanks, punctuation and a leading article make no other entity.

    Signs stay (C, C++ and C# differ), and so do accents. Empty where the name has no letter, number or sign.
    """
    text = DOT.sub("", unicodedata.normalize("NFKC", name).casefold().translate(APOSTROPHES))
    kept = "".join(c if c == "#" or unicodedata.category(c)[0] in "LMNS" else " " for c in text)
    return ARTICLE.sub("", " ".join(kept.split()))


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
