"""From text to words, for everything that compares texts by words: the index, its queries, and rewards.

- Case is folded after NFKC, so that composed and decomposed, full-width and upper-case letters compare equal. H₂O is
  H2O; a power, an index or a fraction stays apart from the number before it, since NFKC makes 106 of 10⁶, 11⁄2 of 1½
  and 12 of ①②: 10⁶ is 10^6. H₂O, m² and Ca²⁺ are written as H2O, m2 and Ca2+ all the same.
- A word is a run of letters and digits. Its combining marks (Unicode's Mn and Mc) belong to it: vowel signs, points.
- Invisible characters vanish (Cf and default ignorables): soft hyphens, zero-width ones, variation selectors.
- Han, Hiragana, Katakana, Thai, Lao, Khmer, Myanmar and the Tai scripts are written without blanks between words, and
  Hangul with particles behind a word's end. Of a run of their letters every two neighbours are a word, and a letter
  that stands alone is one, as Lucene's CJKBigramFilter does it.
- Stop words say nothing of a query's topic, and stay where they may be a name: hepatitis A, the WHO, The Who.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence, Set
from functools import cache
from operator import add
from pathlib import Path

import regex

from ratchet.core.errors import UserError

# Superscripts, subscripts and the like as plain text, so that no two numbers become another one

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
    """Put "^" before a power, "_" before an index and a blank before another number, wherever NFKC would join them to
    the number before. A raised number after a word gets a "^" too."""
    if text.isascii() or not STANDS_FOR_DIGITS.search(text):
        return text
    return NEXT.sub(" ", INDEX.sub("_", POWER.sub("^", text)))


def script_sign(before: str, script: str, raised: bool) -> str:
    """Return what stands between a text and the superscript or subscript of mark-up that follows it: "^", "_" or
    nothing. H and 2 make H2, 10 and 6 make 10^6, 2 and nd make 2nd, a word and its footnote's mark word^a."""
    if not raised:
        return "_" if ENDS_IN_NUMBER.search(before) and BEGINS_WITH_NUMBER.match(script) else ""
    if ENDS_IN_NUMBER.search(before):
        return "^" if SIGNED_NUMBER.match(script) else ""
    return "^" if ENDS_IN_WORD.search(before) and FOOTNOTE.match(script) else ""


def parts_numbers(before: str, after: str) -> bool:
    """Return whether one text ends and the other begins with a digit, so that together they would be another number."""
    return bool(ENDS_IN_NUMBER.search(before) and BEGINS_WITH_NUMBER.match(after))


NUMBER = rf"[\p{{Nd}}{RAISED}{LOWERED}{ENCLOSED}]"
ENDS_IN_NUMBER = regex.compile(rf"{NUMBER}\Z")
BEGINS_WITH_NUMBER = regex.compile(NUMBER)
SIGNED_NUMBER = regex.compile(rf"[+\-\u2212\u2013\u00b1⁺⁻]?{NUMBER}")
ENDS_IN_WORD = regex.compile(rf"{AFTER_WORD}\Z")
FOOTNOTE = regex.compile(r"[\p{L}\p{N}™℠]")
"""The beginning of a mark behind a word."""

# Words

WORD_RULES = 3
"""Raise it when the words of a text change: an index of words that were split by other rules is refused."""

LETTER = r"\p{L}\p{N}"
MARK = r"\p{Mn}\p{Mc}"
WORD = regex.compile(f"[{LETTER}][{LETTER}{MARK}]*")
"""In a text of `spaced_words`."""
MARKS = regex.compile(f"[{MARK}]+")
COMPOSES = regex.compile(rf"[{MARK}\u1160-\u11ff]")
"""Characters that may become one with the one before: marks, and the parts of a Hangul syllable."""
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
    """Return the words of a text in order, repeats included."""
    return ASCII_WORD.findall(text.lower()) if text.isascii() else WORD.findall(spaced_words(text).decode(*UTF_8))


def spaced_words(text: str) -> bytes:
    """Return the folded text in UTF-8, with blanks between the words of scripts that have none: its words are the runs
    of WORD."""
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
    """Return whether a character beyond ASCII stays as it is, whatever stands around it."""
    return not COMPOSES.match(character) and separate_unspaced(fold_text(character)) == character


def padded_words(text: str) -> str:
    """Return the words with a blank before and after each, so that `in` finds runs of whole words. A letter of a script
    without blanks is a word by itself here, so that no run of letters is missed."""
    return f" {' '.join(WORD.findall(separate_unspaced(fold_text(text), pairs=False)))} "


def fold_text(text: str) -> str:
    """Fold the text for comparison without regard to case: NFKC, case-folded, without invisible characters."""
    return _fold_case(without_invisible(text))


def _fold_case(text: str) -> str:
    # The capital İ of Turkish is an i: folding leaves the dot of it as a mark.
    return nfkc(text.casefold().replace("i\u0307", "i"))


def without_invisible(text: str) -> str:
    """Return the text in NFKC without invisible characters."""
    # NFKC makes some invisible characters of others. Before it, none may part a number from its power.
    return nfkc(INVISIBLE.sub("", nfkc(INVISIBLE.sub("", text))))


def nfkc(text: str) -> str:
    """Return the text in NFKC, with its numbers apart. Of more than 30 marks in a row, which no language has (Unicode
    Standard Annex 15), the first 30 are kept: normalising takes time that grows with their square."""
    return text if text.isascii() else unicodedata.normalize("NFKC", separate_numbers(LONG_MARKS.sub(r"\1", text)))


def separate_unspaced(text: str, pairs: bool = True) -> str:
    """Put blanks between the words of scripts that write none: pairs that overlap, or single letters."""

    def words(run: regex.Match[str]) -> str:
        letters = UNSPACED_LETTER.findall(run[0]) if MARKS.search(run[0]) else run[0]
        return f" {' '.join(map(add, letters, letters[1:]) if pairs and len(letters) > 1 else letters)} "

    # A range is searched ten times as fast as a script.
    return BEYOND_LATIN.sub(lambda part: UNSPACED_RUN.sub(words, part[0]), text)


# Stop words

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
"""The end of "it's" and "don't" behind the apostrophe."""
SENTENCE_END = re.compile(r"[!?。！？؟।\n\r]")
FULL_STOP = re.compile(r"\.\W")
ABBREVIATION = 3
"""A full stop behind so few letters may be that of an abbreviation: Dr. No, Hepatitis B vs. A."""
OPERATORS = {"AND", "OR", "NOT"}
"""Agents write queries with operators of search services."""
SMALL = regex.compile(r"[\p{Ll}\p{Lo}]")


def content_terms(query: str, stop_words: Set[str]) -> list[str]:
    """Return the terms of a query as they are written, in order, without stop words; all of them where none would be
    left.

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
    """Return the stop words of a config's `index.stop_words`: a name of NAMED, words, or the path of a file with one
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
