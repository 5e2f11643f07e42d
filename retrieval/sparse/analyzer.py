"""From text to index terms: the same ones for documents and queries, or nothing would match."""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache

import Stemmer

from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.stop_words import content_terms
from ratchet.core.words import split_words


class Analyzer:
    """Splits text into words as core/words.py says, and stems them where asked for. Every word of a document is
    indexed; stop words are left out of queries alone.

    `stemmer` is the name of a Snowball algorithm; an unknown one is a UserError. `stop_words` are folded words.
    """

    def __init__(self, stemmer: str | None, stop_words: Set[str] = frozenset()) -> None:
        if stemmer is not None and stemmer not in Stemmer.algorithms():
            raise UserError(
                f"index.stemmer: there is no stemmer {stemmer!r}{did_you_mean(stemmer, Stemmer.algorithms())}; "
                "null turns stemming off"
            )
        # Its own cache is off (0): callers keep one, and without it a call is one step that threads cannot interleave.
        self._stemmer = Stemmer.Stemmer(stemmer, 0) if stemmer else None
        self._stop_words = stop_words
        self._cached_term = lru_cache(maxsize=1 << 16)(self.term)

    def term(self, word: str) -> str:
        """The index term of one word."""
        return str(self._stemmer.stemWord(word)) if self._stemmer else word

    def terms(self, text: str) -> list[str]:
        """The index terms of a document's text in order, repeats included."""
        return list(map(self._cached_term, split_words(text)))

    def query_terms(self, query: str) -> list[str]:
        """The terms of a query in order, repeats included, without stop words."""
        return self.terms(" ".join(content_terms(query, self._stop_words)) if self._stop_words else query)
