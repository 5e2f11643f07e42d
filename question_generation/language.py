"""A light check of a text's language, without a network or a model.

Two signs: most letters are of the documents' script, and no other language that we know has more of its small words
in the text. It tells English from Russian, and an English sentence from a German one. It cannot tell apart languages
without a list below, says nothing about a search query without small words, and lets a foreign quotation pass.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from ratchet.words import split_words
from retrieval.sparse.analyzer import STOP_WORDS as ENGLISH

OTHERS = """
de: der die das den dem des ein eine einen und oder ist sind war nicht von mit für auf als auch wie was wer wird werden
    im zum zur bei nach sich es sie ich
fr: le la les un une des du de et ou est sont était pas que qui dans pour par sur avec ce cette au aux il elle nous vous
    quel quelle comment
es: el la los las un una unos y o es son era no que en de del por para con se su al lo como qué cuál quién cómo más
it: il lo la gli le un una e o è sono era non che di del della dei in per con su si al come cosa quale chi più nel nella
pt: o a os as um uma e ou é são era não que de do da dos das em no na por para com se ao como qual quem mais
nl: de het een en of is zijn was niet van met voor op als ook hoe wat wie wordt worden in bij naar zich die dat er
"""
STOP_WORDS: dict[str, frozenset[str]] = {
    "en": frozenset(word for word in ENGLISH if len(word) > 1) | {"a"},  # single letters are what apostrophes leave
    **{block[:2]: frozenset(block[3:].split()) for block in re.split(r"\n(?=\S)", OTHERS.strip())},
}
ENOUGH_WORDS = 8
"""In a shorter text small words say little."""
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


def other_language(text: str, language: str) -> str | None:
    """The language that the text's small words point to, where that is not `language` (a key of STOP_WORDS)."""
    words = split_words(text)
    if len(words) < ENOUGH_WORDS:
        return None
    counts = {name: sum(word in small for word in words) for name, small in STOP_WORDS.items()}
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] > counts[language] else None
