"""Filters for generated questions and answers that need no model: each gives a reason to drop one, or None."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from ratchet.core.records import Document, with_title
from ratchet.core.words import NO_TOPIC, split_words
from ratchet.question_generation.prompts import Category
from ratchet.questions.load import same_question_key
from ratchet.retrieval.sparse.terms import Analyzer

QUESTION_WORDS = (1, 80)
"""Minimum and maximum number of words of a question. Its category may be stricter."""
ANSWER_WORDS = (1, 250)
"""Minimum and maximum number of words of an answer."""
COPIED_WORDS = 12
"""A question that shares a run of this number of words with a document counts as copied."""
NEAR = 0.7
"""Minimum Jaccard similarity of the sets of three-word runs for a text to count as a copy of another."""
MARKS = "?\u037e\u061f\uff1f"
"""Question marks: Latin, Greek, Arabic, full-width."""
SAME_SCRIPT = 0.8
"""Share of letters: names and terms of another script are welcome."""
EAST_ASIAN = frozenset({"CJK", "HIRAGANA", "KATAKANA", "HANGUL"})
# Also meets the rare question about a document ("Who signed the document?"): better one dropped too many.
SOURCE_MENTION = re.compile(
    r"\b(the|this|these|that|those|both|each|provided|given|above|first|second)\s+(provided\s+|given\s+)?"
    r"(documents?|passages?|texts?|excerpts?|articles?|contexts?|snippets?|paragraphs?)\b",
    re.IGNORECASE,
)


def rejection_reason(
    question: str, answer: str, documents: Sequence[Document], categories: Iterable[Category]
) -> str | None:
    """The first thing that is wrong with a candidate."""
    both = f"{question}\n{answer}"
    source = "\n".join(with_title(d.title, d.text) for d in documents)
    if wrong_length(question, answer, categories := list(categories)):
        return "length"
    if wrong_form(question, categories):
        return "form"
    if SOURCE_MENTION.search(both):
        return "names its source"
    if answer_repeats_question(question, answer):
        return "answer repeats the question"
    if not shares_term(question, source):
        return "not about its documents"
    if any(copies_run(question, d.text, COPIED_WORDS) for d in documents):
        return "copied from its document"
    if not same_script(both, source):
        return "language"
    return None


def wrong_length(question: str, answer: str, categories: Iterable[Category]) -> bool:
    """Question or answer is outside the limits, or the question outside those of its categories. A run of letters of a
    script without spaces counts as one word."""
    asked, answered = len(question.split()), len(answer.split())
    limits = [QUESTION_WORDS, *(c.words for c in categories if c.words is not None)]
    low, high = ANSWER_WORDS
    return not low <= answered <= high or any(not few <= asked <= many for few, many in limits)


def wrong_form(question: str, categories: Iterable[Category]) -> bool:
    """A search query has a question mark or a line break, or any other question has no question mark."""
    asks = any(mark in question for mark in MARKS)
    search = any(category.form == "search" for category in categories)
    return "\n" in question.strip() or (asks if search else not asks)


def answer_repeats_question(question: str, answer: str) -> bool:
    """The answer has no words, or nearly those of the question. ("Is A or B older?" may be answered with "A".)"""
    asked, answered = question_shingles(question), question_shingles(answer)
    return not split_words(answer) or len(asked & answered) >= NEAR * len(asked | answered)


def shares_term(question: str, documents: str) -> bool:
    """Tell whether the documents have a word of the question, small words apart. Of 3,497 real questions, made to be
    asked in other words than the documents', one has none."""
    analyzer = Analyzer("english")
    asked = analyzer.terms(" ".join(word for word in split_words(question) if word not in NO_TOPIC))
    return not set(asked).isdisjoint(analyzer.terms(documents))


def scripts(text: str) -> Counter[str]:
    """Letters by script: the first word of a character's Unicode name, East Asian scripts taken together."""
    counts: Counter[str] = Counter()
    for char, count in Counter(text).items():
        if char.isalpha():
            name = unicodedata.name(char, "UNKNOWN").split()[0].split("-")[0]
            counts["EAST ASIAN" if name in EAST_ASIAN else name] += count
    return counts


def same_script(text: str, documents: str) -> bool:
    """Tell whether most letters of the text are of the script of most letters of the documents."""
    wanted, letters = scripts(documents), scripts(text)
    if not wanted or not letters:
        return True
    return letters[wanted.most_common(1)[0][0]] >= SAME_SCRIPT * letters.total()


def copies_run(text: str, document: str, words: int) -> bool:
    """Tell whether the text shares a run of so many words with the document."""

    def runs(of: str) -> set[tuple[str, ...]]:
        said = split_words(of)
        return {tuple(said[at : at + words]) for at in range(len(said) - words + 1)}

    return not runs(text).isdisjoint(runs(document))


def question_shingles(text: str) -> frozenset[str]:
    """The three-word runs by which two questions are compared, or the words of a shorter one."""
    words = same_question_key(text).split()
    return frozenset(words if len(words) < 3 else map(" ".join, zip(words, words[1:], words[2:], strict=False)))


class AcceptedQuestions:
    """The questions accepted so far, to find near copies among."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}
        self._holders: dict[str, list[str]] = {}

    def copy_of(self, question: str) -> str | None:
        """The key of an accepted question that shares at least `NEAR` of its three-word runs (Jaccard)."""
        own = question_shingles(question)
        shared = Counter(key for run in own for key in self._holders.get(run, ()))
        for key, count in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
            if count / (len(own) + self._runs[key] - count) >= NEAR:
                return key
        return None

    def add(self, key: str, question: str) -> None:
        own = question_shingles(question)
        self._runs[key] = len(own)
        for run in own:
            self._holders.setdefault(run, []).append(key)
