"""Rule-based scores: pure functions of the answer's text, no judge needed.

`em`, `f1`, token precision and token recall follow the scorers that the benchmarks publish: SQuAD's normalisation,
which HotpotQA, 2WikiMultiHopQA, MuSiQue, KILT and FlashRAG share, and HotpotQA's F1. Where scorers differ:
- yes, no, noanswer: HotpotQA and FlashRAG give 0 when exactly one side is such an answer, as here; SQuAD, KILT and
  TriviaQA count shared words there too.
- Nothing on both sides after normalising ('A' and 'The'): SQuAD 2.0 has F1 1, the others 0; EM is 1 in all. Here
  such answers are compared as they are.
- Punctuation: all delete ASCII punctuation ('twenty-one' is one word); TriviaQA's turns it, and curly single quotes,
  into blanks. That beyond ASCII stays in all the others.
- Several right answers: precision and recall are each the best over them, as in FlashRAG; they need not belong to the
  same answer, so their harmonic mean may be above F1. HotpotQA has one answer.
Deviation: `ratchet.core.text.normalise_answer` is wider than the published rule. Composed and decomposed letters,
full-width digits, typographic apostrophes, quotation marks and dashes are equal, and invisible characters do not
count; nor does punctuation of any script at the ends of words. The words of scripts that have no blanks are pairs of
letters, as in the index. No number becomes another one: 1.5 is not 15, as it is there, and 10⁶ is not 106.
`rewards.normalisation: published`, given to these functions as `normalise`, is that rule alone.

The others are ours, stand-ins for the judged scores where no judge is at hand, and named as rules everywhere they are
shown: `nugget_containment` for correctness, `lexical_support` for faithfulness, `unattributed_sentences` for the
share of claims that no document supports. They see words, not meaning: a paraphrase scores too low, a negation too
high.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from ratchet.core.records import Passage, Question
from ratchet.core.text import Normalise, fold_typography, normalise_answer, plain_answer, spaced_answer
from ratchet.core.words import FUNCTION_WORDS, fold_text, split_words

VERSION = 4
"""Raise it when a rule's result changes: stored scores of another version are not reused."""

CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})
SENTENCE_END = re.compile(r"(?<=[.!?।۔؟])\s+|(?<=[。！？])|\n+")
SUPPORTED = 0.5
"""The share of a sentence's content words that must occur in the documents for it to count as attributed."""


def references(question: Question) -> tuple[str, ...]:
    """The right answers: the short ones, or the reference text where there are none."""
    return question.answers or ((question.reference,) if question.reference else ())


def accuracy(answer: str, question: Question) -> float | None:
    """1.0 where the answer is the label, but for case and surrounding blanks, else 0.0; None without a label."""
    if question.label is None:
        return None
    return float(answer.strip().casefold() == question.label.casefold())


def exact_match(answer: str, references: Sequence[str], normalise: Normalise = normalise_answer) -> float:
    """1.0 where the answer equals a reference, both normalised, else 0.0 (Rajpurkar et al. 2016, arXiv 1606.05250)."""
    _require(references)
    said = normalise(answer)
    return float(any(said == normalise(reference) for reference in references))


def is_right(answer: str, question: Question, normalise: Normalise = normalise_answer) -> float | None:
    """The accuracy of a label, or exact match; None for a question that has nothing to compare with."""
    if question.label is not None:
        return accuracy(answer, question)
    expected = references(question)
    return exact_match(answer, expected, normalise) if expected else None


def token_f1(answer: str, references: Sequence[str], normalise: Normalise = normalise_answer) -> float:
    """Harmonic mean 2pr / (p + r) of word precision and recall, words counted with repetition; the best over the
    references, from 0 to 1 (Rajpurkar et al. 2016, arXiv 1606.05250).

    It is 0 against a reference when exactly one of the two is yes, no or noanswer (rule of HotpotQA, Yang et al. 2018,
    arXiv 1809.09600): 'yes, it is' shares a word with 'yes' but is not that closed answer.
    """
    return _best(answer, references, normalise).f1


def token_precision(answer: str, references: Sequence[str], normalise: Normalise = normalise_answer) -> float:
    """Share of the answer's words that a reference has (0 to 1), best over the references; 0 as in `token_f1`."""
    return _best(answer, references, normalise).precision


def token_recall(answer: str, references: Sequence[str], normalise: Normalise = normalise_answer) -> float:
    """Share of a reference's words that the answer has (0 to 1), best over the references; 0 as in `token_f1`."""
    return _best(answer, references, normalise).recall


class _Overlap(NamedTuple):
    f1: float
    precision: float
    recall: float


def _best(answer: str, references: Sequence[str], normalise: Normalise) -> _Overlap:
    _require(references)
    said = normalise(answer)
    every = [_overlap(said, normalise(reference)) for reference in references]
    return _Overlap(*(max(column) for column in zip(*every, strict=True)))


def _overlap(said: str, expected: str) -> _Overlap:
    if said != expected and (said in CLOSED_ANSWERS or expected in CLOSED_ANSWERS):
        return _Overlap(0.0, 0.0, 0.0)
    said_words, expected_words = said.split(), expected.split()
    common = (Counter(said_words) & Counter(expected_words)).total()
    if not common:
        return _Overlap(0.0, 0.0, 0.0)
    both = len(said_words) + len(expected_words)
    return _Overlap(2 * common / both, common / len(said_words), common / len(expected_words))


def _require(references: Sequence[str]) -> None:
    if not references:
        raise ValueError("there is no reference to compare with; such a score is null, not a number")


def nugget_containment(answer: str, nuggets: Iterable[str]) -> float | None:
    """Share of the nuggets that occur in the answer, both normalised, as a run of whole words; from 0 to 1 (our rule).

    An empty answer contains none: 0. It is None without nuggets (one without any word does not count).
    """
    plain = (spaced_answer(fold_text(plain_answer(text)), pairs=False) for text in (answer, *nuggets))
    there, *wanted = (f" {words} " for words in plain)
    wanted = [words for words in wanted if words.strip()]
    return sum(words in there for words in wanted) / len(wanted) if wanted else None


def lexical_support(answer: str, passages: Iterable[Passage]) -> float | None:
    """Share of the answer's distinct content words, which are no function words, that occur in the supporting passages'
    titles or texts; from 0 to 1 (our rule).

    Words are compared without stemming. It is 0 without passages, and None for an answer without content words (empty,
    or a bare yes or no): there is nothing to support.
    """
    wanted = _content_words(answer)
    if not wanted:
        return None
    return len(wanted & _passage_words(passages)) / len(wanted)


def unattributed_sentences(answer: str, passages: Iterable[Passage]) -> float | None:
    """Share of the answer's sentences that have less than half of their content words in the supporting passages (0 to
    1, lower is better; our rule).

    A sentence without content words states nothing and does not count; None for an answer without other sentences.
    """
    there = _passage_words(passages)
    sentences = [words for sentence in SENTENCE_END.split(answer) if (words := _content_words(sentence))]
    return fmean(len(words & there) / len(words) < SUPPORTED for words in sentences) if sentences else None


def _passage_words(passages: Iterable[Passage]) -> set[str]:
    return {word for passage in passages for word in _content_words(f"{passage.title} {passage.text}")}


def _content_words(text: str) -> set[str]:
    # Normalising deletes punctuation: a dash between two words must not join them.
    return set(split_words(plain_answer(fold_typography(text).replace("-", " ")))) - FUNCTION_WORDS


def gold_recall(question: Question, passages: Sequence[Passage]) -> float | None:
    """Share of the gold documents among the passages' documents; None for a question without gold documents."""
    ids, titles = set(question.gold_ids), {normalise_title(title) for title in question.gold_titles}
    shares = []
    if ids:
        shares.append(len(ids & {passage.document_id for passage in passages}) / len(ids))
    if titles:
        shares.append(len(titles & {normalise_title(passage.title) for passage in passages}) / len(titles))
    return max(shares, default=None)


def normalise_title(title: str) -> str:
    """A title without what dumps do to it: HTML escapes, underscores for blanks, quotation marks around it, case."""
    text = fold_typography(html.unescape(title)).replace("_", " ")
    return " ".join(text.split()).strip('"').casefold()
