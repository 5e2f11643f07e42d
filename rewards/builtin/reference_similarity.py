"""The answer's similarity to a right one, beyond what the question says, by words and by the embedder. No judge.

A long answer and its reference both repeat the question, so plain overlap also rewards an answer that says nothing
else. The score is the mean of three parts, each from 0 to 1:

- the word F1 of `rules.token_f1`;
- the same F1 of the stems of content words that the question does not have;
- recall by meaning: for each sentence of the reference, the best cosine with a sentence of the answer, after the
  question's direction was removed from both; weighted by the sentence's words.

It is 0 where one of answer and reference begins with "yes" and the other with "no". Of several references the best
counts. The parts, with equal weights, were chosen on one half of the human preferences of RAGChecker (Ru et al. 2024,
arXiv 2408.08067) and tested on the other (`benchmarks/human.py` of commit 2e34629). Stems and content words are
English.
"""

from __future__ import annotations

import re
from collections import Counter
from statistics import fmean

import numpy as np
import Stemmer
from numpy.typing import NDArray

from ratchet.core.records import Question, Trajectory
from ratchet.core.words import FUNCTION_WORDS, split_words
from ratchet.retrieval.encoders.limits import Embed, end_of
from ratchet.rewards.inputs import Inputs
from ratchet.rewards.reward import Rule
from ratchet.rewards.rules import SENTENCE_END, references, token_f1

OPENING = re.compile(r"\W*(yes\b|no(?=\W*$|\s*[^\w\s]))", re.IGNORECASE)
"""A yes, or a no that does not begin a phrase such as 'no one'."""
NO_CONTENT = FUNCTION_WORDS | {"a", "the"}
MIN_LENGTH = 0.1
"""The least length of a sentence's vector, which has length 1, once the question's direction is taken out. A sentence
with less only repeats the question, and its direction would be that of rounding."""

Vectors = NDArray[np.float32]
_stemmer = Stemmer.Stemmer("english", 0)


def score(question: Question, trajectory: Trajectory, inputs: Inputs) -> float:
    """The best similarity to one of the right answers."""
    answer = trajectory.answer
    return max(similarity(question.text, answer, reference, inputs.embed) for reference in references(question))


REWARD = Rule(
    title="Reference similarity",
    version=2,
    score=score,
    needs=("answers", "reference"),
    needs_embedder=True,
)


def similarity(question: str, answer: str, reference: str, embed: Embed) -> float:
    """The score against one reference, from 0 to 1."""
    if contradicts(answer, reference):
        return 0.0
    parts = (
        token_f1(answer, [reference]),
        added_word_f1(question, answer, reference),
        meaning_recall(question, answer, reference, embed),
    )
    return fmean(parts)


def contradicts(answer: str, reference: str) -> bool:
    """Tell whether one begins with yes and the other with no."""
    matches = (OPENING.match(text) for text in (answer, reference))
    openings = {match[1].lower() for match in matches if match}
    return len(openings) == 2


def added_word_f1(question: str, answer: str, reference: str) -> float:
    """F1 of the stems, counted with repetition, of the content words that the question does not have (0 to 1).

    Where the reference has no such words, all content words are compared, and where it has none of these, all words.
    """
    for skipped in (NO_CONTENT | set(stems(question)), NO_CONTENT, frozenset[str]()):
        wanted = Counter(stems(reference, skipped))
        if wanted:
            said = Counter(stems(answer, skipped))
            return 2 * (said & wanted).total() / (said.total() + wanted.total())
    return 0.0


def stems(text: str, skipped: frozenset[str] = frozenset()) -> list[str]:
    """The stems of the words, without those that are skipped as words or as stems."""
    words = [word for word in split_words(text) if word not in skipped]
    return [stem for stem in _stemmer.stemWords(words) if stem not in skipped]


def meaning_recall(question: str, answer: str, reference: str, embed: Embed) -> float:
    """For each sentence of the reference, the best cosine with a sentence of the answer (at least 0) after the
    question's direction was removed from both; the mean, weighted by the sentences' words (0 to 1).

    A sentence that only repeats the question does not count. Where the reference has no other, the cosines are those
    of the whole vectors.
    """
    expected, said = sentences(reference), sentences(answer)
    if not expected or not said:
        return 0.0
    asked, *vectors = embed([end_of(embed, question)[0], *expected, *said])
    whole = np.stack(vectors)
    rest, adds = _without(whole, asked)
    weights = np.array([len(split_words(sentence)) for sentence in expected], np.float64)
    if adds[: len(expected)].any():
        whole, weights = rest, weights * adds[: len(expected)]
    best = (whole[: len(expected)] @ whole[len(expected) :].T).max(axis=1)
    return float(np.average(best.clip(0, 1), weights=weights))


def _without(vectors: Vectors, direction: Vectors) -> tuple[Vectors, NDArray[np.bool_]]:
    """(The vectors at a right angle to `direction`, of length 1, or 0 where hardly anything is left; which have 1)."""
    rest = vectors - np.outer(vectors @ direction, direction)
    lengths = np.linalg.norm(rest, axis=1)
    adds = lengths >= MIN_LENGTH
    return np.where(adds[:, None], rest / np.where(adds, lengths, 1)[:, None], 0).astype(np.float32), adds


def sentences(text: str) -> list[str]:
    """The pieces between ends of sentences and lines that have a word."""
    return [piece for part in SENTENCE_END.split(text) if split_words(piece := part.strip())]
