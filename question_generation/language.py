"""Whether a text is in the script of its documents, without a network or a model."""

from __future__ import annotations

import unicodedata
from collections import Counter

SAME_SCRIPT = 0.8
"""Share of letters: names and terms of another script are welcome."""
EAST_ASIAN = frozenset({"CJK", "HIRAGANA", "KATAKANA", "HANGUL"})


def scripts(text: str) -> Counter[str]:
    """Letters by script: the first word of a character's Unicode name, East Asian scripts taken together."""
    counts: Counter[str] = Counter()
    for char, count in Counter(text).items():
        if char.isalpha():
            name = unicodedata.name(char, "UNKNOWN").split()[0].split("-")[0]
            counts["EAST ASIAN" if name in EAST_ASIAN else name] += count
    return counts


def same_script(text: str, documents: str) -> bool:
    """Whether most letters of the text are of the script that most letters of the documents are of."""
    wanted, letters = scripts(documents), scripts(text)
    if not wanted or not letters:
        return True
    return letters[wanted.most_common(1)[0][0]] >= SAME_SCRIPT * letters.total()
