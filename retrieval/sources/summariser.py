"""Extractive summaries: the sentences of a text that say most of it, word for word and in their order.

Tool-MAD (section IV-D, figure 7) shortens each abstract with a DistilBERT extractive summariser, of which it names no
published model. Ours needs none of its own: sentences are compared by the config's embedder (all-MiniLM-L6-v2 by
default) and taken one by one, near the centroid of the text and far from those taken before (centroid-based
summarisation: Radev et al. 2004; the trade-off: maximal marginal relevance, Carbonell and Goldstein 1998). The same
text gives the same summary, whatever was asked for. No model calls, no retrievals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ratchet.core.records import content_key
from ratchet.retrieval.encoders.embed import Embed

REDUNDANCY = 0.3
"""Weight of being like a sentence that was taken already, against 0.7 of being like the whole."""
MAX_SENTENCES = 200
"""Of one text; what follows is left out."""
# A full stop that ends no sentence stands after one of these, or after a single letter.
ABBREVIATED = (
    "al approx ca cf dr e.g ed eds eq etc fig figs i.e jr mr mrs ms p pp prof resp sec sr st vol vs u.s u.k "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
ABBREVIATIONS = frozenset(ABBREVIATED.split())
END = re.compile(r"[.!?।۔؟]+[\"'”’)\]]*(?=\s)|[。！？]+[」』”’）]*|\n+")
LAST_WORD = re.compile(r"([\w.]+)\.[\"'”’)\]]*$")


class Summariser:
    """Shortens texts to their most central sentences."""

    def __init__(self, embed: Embed, name: object, max_sentences: int) -> None:
        """`name`: what the embedder is, for the digest. `max_sentences`: of a summary."""
        self.max_sentences = max_sentences
        self.digest = content_key("summariser", 2, name, REDUNDANCY)
        self._embed = embed

    def summaries(self, texts: Sequence[str]) -> list[str]:
        """At most `max_sentences` sentences of each text."""
        return list(map(self._summary, texts))

    def _summary(self, text: str) -> str:
        parts = sentences(text)[:MAX_SENTENCES]
        if len(parts) <= self.max_sentences:
            return " ".join(parts)
        return " ".join(parts[number] for number in central(self._embed(parts), self.max_sentences))


def central(vectors: np.ndarray, max_sentences: int) -> list[int]:
    """The rows to take, in ascending order; of equals the first."""
    rows = vectors.astype(np.float64)
    centroid = rows.mean(axis=0)
    likeness = rows @ (centroid / (np.linalg.norm(centroid) or 1.0))
    taken: list[int] = []
    repeated = np.zeros(len(rows))
    while len(taken) < min(max_sentences, len(rows)):
        worth = (1 - REDUNDANCY) * likeness - REDUNDANCY * repeated
        worth[taken] = -np.inf
        # Rounded, so that the last bits of a model's arithmetic decide nothing.
        best = int(np.argmax(np.round(worth, 6)))
        taken.append(best)
        repeated = np.maximum(repeated, rows @ rows[best])
    return sorted(taken)


def sentences(text: str) -> list[str]:
    """The sentences of a text, without the blanks between them. A line's end ends one too."""
    parts, start = [], 0
    for end in END.finditer(text):
        if not end[0].startswith("\n") and not _ends(text[start : end.end()], text[end.end() :]):
            continue
        parts.append(text[start : end.end()])
        start = end.end()
    parts.append(text[start:])
    return [sentence for part in parts if (sentence := " ".join(part.split()))]


def _ends(before: str, after: str) -> bool:
    """Whether the stop that `before` ends with is a sentence's, by the words around it."""
    following = after.lstrip()[:1]
    if following.islower():
        return False
    word = LAST_WORD.search(before)
    return word is None or not ((len(word[1]) == 1 and word[1].isalpha()) or word[1].lower() in ABBREVIATIONS)
