"""From text to index terms: the same ones for documents and queries, or nothing would match."""

from __future__ import annotations

from functools import lru_cache

import Stemmer

from ratchet.errors import UserError, did_you_mean
from ratchet.words import split_words

# English words that carry grammar, not topic. The single letters are what an apostrophe leaves of "it's" and "don't".
ENGLISH = """
a about after again all also am an and any are as at be because been before being between both but by can cannot
could did do does doing down during each few for from further had has have having he her here hers herself him
himself his how i if in into is it its itself just me more most my myself no nor not now of off on once only or
other our ours ourselves out over own same shall she should so some such than that the their theirs them themselves
then there these they this those through to too under until up very was we were what when where which while who whom
whose why will with would you your yours yourself yourselves
d ll m re s t ve
"""
STOP_WORDS = frozenset(ENGLISH.split())


class Analyzer:
    """Splits text into words as ratchet/words.py says; English stop words are left out and the rest is stemmed, each
    where asked for.

    `stemmer` is the name of a Snowball algorithm; an unknown one is a UserError.
    """

    def __init__(self, stemmer: str | None, stop_words: bool) -> None:
        if stemmer is not None and stemmer not in Stemmer.algorithms():
            raise UserError(
                f"index.stemmer: there is no stemmer {stemmer!r}{did_you_mean(stemmer, Stemmer.algorithms())}; "
                "null turns stemming off"
            )
        # Its own cache is off (0): callers keep one, and without it a call is one step that threads cannot interleave.
        self._stemmer = Stemmer.Stemmer(stemmer, 0) if stemmer else None
        self._stop_words = STOP_WORDS if stop_words else frozenset()
        self._cached_term = lru_cache(maxsize=1 << 16)(self.term)

    def term(self, word: str) -> str | None:
        """The index term of one word; None for a stop word."""
        if word in self._stop_words:
            return None
        return str(self._stemmer.stemWord(word)) if self._stemmer else word

    def terms(self, text: str) -> list[str]:
        """The index terms of a text in order, repeats included. Words are cached: this is for queries."""
        return [term for word in split_words(text) if (term := self._cached_term(word)) is not None]
