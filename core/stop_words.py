"""Words that say nothing of a query's topic, and where such a word is a name: hepatitis A, the WHO, The Who."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from pathlib import Path

import regex

from ratchet.core.errors import UserError
from ratchet.core.words import WORD, fold_text, separate_unspaced, split_words, without_invisible

ENGLISH = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
NO_CONTENT = """
about after all also am an and any are as at be because been before being both but by can could did do does for from had
has have he her here hers him his how i if in into is it its itself just me might more most must my nor not of on only
or other our ours out over own shall she should so some such than that the their theirs them then there these they this
those through to too under up upon very was we were what when where which while who whom whose why will with would you
your yours yes no noanswer
"""
STOP_WORDS = frozenset(ENGLISH.split())
"""Lucene's list for English (`EnglishAnalyzer.ENGLISH_STOP_WORDS_SET`)."""
FUNCTION_WORDS = frozenset(NO_CONTENT.split())
"""Words without content that a passage could support, yes and no among them."""
NO_TOPIC = STOP_WORDS | FUNCTION_WORDS
"""The longer list: Lucene's with question words, pronouns and auxiliary verbs."""
NAMED = {"none": frozenset[str](), "english": STOP_WORDS, "long": NO_TOPIC}

SIGNS = "[-'’._&/]"
TERM = regex.compile(rf"{WORD.pattern}(?:{SIGNS}{WORD.pattern})*")
"""Words that a sign joins are one term: up-to-date, AT&T, U.S., Velm's."""
ASCII_TERM = re.compile(rf"[A-Za-z0-9]+(?:{SIGNS}[A-Za-z0-9]+)*")
SHORTENED = re.compile(r"['’](?:s|t|d|m|ll|re|ve)$", re.IGNORECASE)
"""What an apostrophe leaves at the end of "it's" and "don't"."""
SENTENCE_END = re.compile(r"[!?。！？؟।\n\r]")
FULL_STOP = re.compile(r"\.\W")
ABBREVIATION = 3
"""A full stop behind so few letters may be that of an abbreviation: Dr. No, Hepatitis B vs. A."""
OPERATORS = {"AND", "OR", "NOT"}
"""Agents write queries with operators of search services."""
SMALL = regex.compile(r"[\p{Ll}\p{Lo}]")


def content_terms(query: str, stop_words: Set[str]) -> list[str]:
    """The terms of a query as they are written, in order, without stop words; all of them where none would be left.

    A stop word stays where it may be a name, if not all of the query is in capitals: inside a term, in capitals,
    capitalised inside a sentence, or where all terms are capitalised (Will Smith). An I must follow a capitalised term
    (Elizabeth I). `stop_words` are folded words.
    """
    if query.isascii():
        pattern = ASCII_TERM
    else:
        pattern, query = TERM, separate_unspaced(without_invisible(query))
    found = list(pattern.finditer(query))
    terms = [SHORTENED.sub("", match[0]) for match in found]
    stops = [(term.lower() if term.isascii() else fold_text(term)) in stop_words for term in terms]
    if not any(stops):
        return terms
    capitals_tell = SMALL.search(query) is not None
    names_alone = not any(term[0].islower() for term in terms)

    def is_name(i: int) -> bool:
        term = terms[i]
        if not capitals_tell or not term[0].isupper() or term in OPERATORS:
            return False
        if term == "I":
            return i > 0 and terms[i - 1][0].isupper() and not stops[i - 1]
        return names_alone or (len(term) > 1 and term.isupper()) or not starts_sentence(i)

    def starts_sentence(i: int) -> bool:
        gap = query[found[i - 1].end() : found[i].start()] if i else "\n"
        after_stop = FULL_STOP.match(gap) and len(terms[i - 1]) > ABBREVIATION
        return bool(after_stop or SENTENCE_END.search(gap))

    return [term for i, term in enumerate(terms) if not stops[i] or is_name(i)] or terms


def read_stop_words(given: str | Sequence[str]) -> frozenset[str]:
    """The stop words that a config's `index.stop_words` means: a name of NAMED, words, or the path of a file with one
    word a line. Raises UserError for a file that cannot be read."""
    if isinstance(given, str) and given in NAMED:
        return NAMED[given]
    if isinstance(given, str):
        try:
            given = Path(given).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"index.stop_words: cannot read {given} ({reason}); give a file with one word a line, a list of words, "
                "english, long or none"
            ) from error
    return frozenset(word for text in given for word in split_words(text))
