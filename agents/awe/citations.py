"""Checked citations: which claims of an argument rest on words that are in its documents (AwE, equation 10).

An argument is its claims, one a sentence. A claim is valid if at least one of its citations is: [2: "some words"],
where document 2 of the advocate's own set holds these words, blanks, case and typography apart, and they are two or
more. That the words support the claim is for the judge to say; here it is certain that they exist.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.core.records import Passage
from ratchet.core.text import fold_typography
from ratchet.core.words import split_words

CITATION = re.compile(r'\[\s*(\d{1,4})\s*:\s*["“”](.*?)["“”]\s*\]', re.DOTALL)
PLACEHOLDER = re.compile(r"\0(\d+)\0")
CITATION_AFTER_STOP = re.compile(r"([.!?।۔؟。！？]+)((?:\s*\0\d+\0)+)")
SENTENCE_END = re.compile(r"(?<=[.!?।۔؟])(?<!\b[A-Za-z]\.)(?<!\b[DMS][rst]\.)\s+|(?<=[。！？])(?![。！？])")
"""Not after an initial, nor after Dr., Mr., Ms. or St."""


@dataclass(frozen=True)
class Claim:
    """One sentence of an argument and what it cites."""

    text: str
    """The sentence, without its citations."""
    citations: tuple[tuple[int, str], ...] = ()
    """(document number, quote)"""

    def __str__(self) -> str:
        return " ".join([self.text, *(f'[{number}: "{quote}"]' for number, quote in self.citations)])


def check_citations(argument: str, passages: Sequence[Passage]) -> tuple[list[Claim], list[Claim]]:
    """(valid claims, each with its valid citations alone; the claims that were dropped)."""
    valid, dropped = [], []
    for claim in split_claims(argument):
        citations = tuple(c for c in claim.citations if has_quote(*c, passages))
        if citations:
            valid.append(Claim(claim.text, citations))
        else:
            dropped.append(claim)
    return valid, dropped


def split_claims(argument: str) -> list[Claim]:
    """The argument's sentences with their citations, whether these stand before the full stop or behind it."""
    citations: list[tuple[int, str]] = []

    def placeholder(citation: re.Match[str]) -> str:
        citations.append((int(citation[1]), " ".join(citation[2].split())))
        return f"\0{len(citations) - 1}\0"  # a quote may hold full stops, which end no claim

    text = CITATION.sub(placeholder, argument.replace("\0", ""))
    text = CITATION_AFTER_STOP.sub(r"\2\1", text)
    claims = []
    for sentence in SENTENCE_END.split(text):
        cited = tuple(citations[int(number)] for number in PLACEHOLDER.findall(sentence))
        words = re.sub(r"\s+([.!?,;।۔؟。！？，；])", r"\1", " ".join(PLACEHOLDER.sub(" ", sentence).split()))
        if re.search(r"\w", words):
            claims.append(Claim(words, cited))
    return claims


def has_quote(number: int, quote: str, passages: Sequence[Passage]) -> bool:
    """Whether document `number`, counted from 1, holds the quote."""
    words = _normalised(quote)
    if not 1 <= number <= len(passages) or len(split_words(words)) < 2:
        return False
    passage = passages[number - 1]
    return words in _normalised(f"{passage.title}: {passage.text}")


def _normalised(text: str) -> str:
    return " ".join(fold_typography(text).casefold().split())
