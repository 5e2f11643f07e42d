"""Leakage: what training and evaluation share, and the checks that stop a run because of it (`questions.leakage`).

Questions are compared in two ways. Exact: the same words in the same order, whatever the case and the punctuation.
Near: the Jaccard overlap of the sets of three-word shingles is 0.8 or more; a question of one or two words has its
words instead of shingles. The overlap is computed exactly: two sets that overlap so much share one of their rarest
members (prefix filtering), so only questions that share a rare shingle are compared. A paraphrase is not found. Gold
documents are compared by id and by title.

`check_leakage` compares a config's splits before sampling and training. `check_adapter_leakage` checks an adapter,
whatever config it was trained with: beside it lie digests of its training questions, so the same questions and gold
documents are found without their texts; nearly the same questions are not.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from questions.load import LoadedSplit, load_split
from ratchet.config import Config, LeakageConfig
from ratchet.errors import UserError
from ratchet.files import read_json_file
from ratchet.records import Question, content_key
from ratchet.words import fold_text, split_words

TRAINING_QUESTIONS = "training_questions.json"
"""Beside an adapter: what `training_question_digests` made."""
MAX_SHOWN = 3
"""How many leaked questions a message shows."""
SHINGLE_WORDS = 3
NEAR = 0.8
"""The Jaccard overlap from which on two questions are nearly the same."""


@dataclass(frozen=True)
class LeakageMatch:
    """A test question, and the training question that it shares most with."""

    kind: Literal["exact", "near", "document"]
    train: str
    test: str
    """Ids of the two questions."""
    score: float
    """exact: 1. near: Jaccard. document: the share of the test question's gold documents that training has."""


@dataclass(frozen=True)
class Leakage:
    """At most one of a kind for each test question, in the test's order."""

    exact: tuple[LeakageMatch, ...] = ()
    near: tuple[LeakageMatch, ...] = ()
    """Of questions that are not there word for word."""
    documents: tuple[LeakageMatch, ...] = ()

    @property
    def questions(self) -> tuple[LeakageMatch, ...]:
        return self.exact + self.near


def find_leakage(train: Sequence[Question], test: Sequence[Question], near: float = NEAR) -> Leakage:
    """What of `test` is in `train`."""
    words = [normalise_words(question.text) for question in train]
    asked = [normalise_words(question.text) for question in test]
    known = {text: i for i, text in reversed(list(enumerate(words)))}
    exact = [
        LeakageMatch("exact", train[known[text]].id, q.id, 1.0)
        for q, text in zip(test, asked, strict=True)
        if text in known
    ]
    left = [j for j, text in enumerate(asked) if text not in known]
    pairs = nearest_neighbours([word_shingles(text) for text in words], [word_shingles(asked[j]) for j in left], near)
    close = [LeakageMatch("near", train[i].id, test[left[j]].id, score) for j, (i, score) in sorted(pairs.items())]
    return Leakage(tuple(exact), tuple(close), tuple(_shared_documents(train, test)))


def normalise_words(text: str) -> str:
    """The words of a text (ratchet/words.py), one blank apart; a text without words stays as it is."""
    return " ".join(split_words(text)) or fold_text(text).strip()


def word_shingles(text: str) -> frozenset[str]:
    """What two questions are compared by: the three-word runs of a normalised text, or the words of a shorter one."""
    words = text.split()
    if len(words) < SHINGLE_WORDS:
        return frozenset(words)
    return frozenset(" ".join(words[i : i + SHINGLE_WORDS]) for i in range(len(words) - SHINGLE_WORDS + 1))


def nearest_neighbours(
    train: Sequence[frozenset[str]], test: Sequence[frozenset[str]], near: float
) -> dict[int, tuple[int, float]]:
    """For the test sets that have one: the training set of the highest Jaccard overlap of `near` or more."""
    frequency = Counter(run for runs in (*train, *test) for run in runs)
    by_rare_run: dict[str, list[int]] = defaultdict(list)
    for i, runs in enumerate(train):
        for run in _rarest(runs, frequency, near):
            by_rare_run[run].append(i)
    best: dict[int, tuple[int, float]] = {}
    for j, runs in enumerate(test):
        for i in sorted({i for run in _rarest(runs, frequency, near) for i in by_rare_run.get(run, ())}):
            score = jaccard(train[i], runs)
            if score >= near and score > best.get(j, (0, 0.0))[1]:
                best[j] = (i, score)
    return best


def _rarest(runs: frozenset[str], frequency: Counter[str], near: float) -> list[str]:
    """So many of the rarest that a set which overlaps by `near` must hold one of them: all but `near` of them, and one.

    An overlap of `near` means at least near * len(runs) members in common, so at most the others are missing.
    """
    common = math.ceil(near * len(runs) - 1e-9)
    return sorted(runs, key=lambda run: (frequency[run], run))[: len(runs) - common + 1]


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """The size of the intersection over the size of the union."""
    return len(first & second) / len(first | second)


def gold_documents(question: Question) -> frozenset[str]:
    """Its gold documents by id and by title, so that the two do not mix."""
    titles = (f"title {normalise_words(title)}" for title in question.gold_titles)
    return frozenset((*(f"id {document}" for document in question.gold_ids), *titles))


def _shared_documents(train: Sequence[Question], test: Sequence[Question]) -> Iterator[LeakageMatch]:
    known: dict[str, str] = {}
    for question in train:
        for document in gold_documents(question):
            known.setdefault(document, question.id)
    for question in test:
        documents = sorted(gold_documents(question))
        shared = [document for document in documents if document in known]
        if shared:
            yield LeakageMatch("document", known[shared[0]], question.id, len(shared) / len(documents))


@dataclass(frozen=True)
class SplitLeakage:
    """Two splits of a config, and what the second has of the first."""

    first: str
    second: str
    count: int
    """Questions of the second."""
    leaks: Leakage
    sources: tuple[str, str]

    def shown(self, leaks: Sequence[LeakageMatch]) -> list[str]:
        """The first few matches as text."""
        return [
            f"{leak.test} ({self.sources[1]}) and {leak.train} ({self.sources[0]}): {leak.kind} {leak.score:.2f}"
            for leak in leaks[:MAX_SHOWN]
        ]


def leakage_between_splits(config: Config, pairs: Iterable[tuple[str, str]] | None = None) -> list[SplitLeakage]:
    """What the second split of each pair has of the first; of every pair by default."""
    loaded: dict[str, LoadedSplit] = {}
    overlaps = []
    for names in combinations(config.splits, 2) if pairs is None else pairs:
        for name in names:
            if name not in loaded:
                loaded[name] = load_split(config.splits[name], config.seed)
        first, second = (loaded[name] for name in names)
        leaks = find_leakage(first.questions, second.questions)
        overlaps.append(SplitLeakage(*names, len(second.questions), leaks, (first.source, second.source)))
    return overlaps


def check_leakage(config: Config) -> list[str]:
    """Raise UserError where training shares questions or documents with evaluation; return the warnings.

    dev is for choosing, not for reported numbers: what training shares with it is a warning at most.
    """
    modes = config.questions.leakage
    if modes.questions == modes.documents == "off":
        return []
    train, *others = config.splits
    warnings: list[str] = []
    for overlap in leakage_between_splits(config, [(train, other) for other in others]):
        leaks, strict = overlap.leaks, overlap.second != "questions.dev"
        part = f"of the {overlap.count} questions of {overlap.second}"
        if leaks.questions:
            ways = f"{len(leaks.exact)} word for word, {len(leaks.near)} nearly"
            message = f"{len(leaks.questions)} {part} are in {train} as well ({ways})"
            warnings += _stop_or_warn("questions", modes, strict, message, overlap.shown(leaks.questions))
        if leaks.documents:
            message = f"{len(leaks.documents)} {part} have a gold document in common with {train}"
            warnings += _stop_or_warn("documents", modes, strict, message, overlap.shown(leaks.documents))
    return warnings


def _stop_or_warn(kind: str, modes: LeakageConfig, strict: bool, message: str, shown: Sequence[str]) -> Iterator[str]:
    mode = getattr(modes, kind)
    if mode == "stop" and strict:
        raise UserError(
            "\n  ".join((f"{message}:", *shown)) + "\nTrain on other questions, or evaluate on others (rows, sample or "
            f"path of the splits), or set questions.leakage.{kind}=warn to continue. `ratchet evaluate leakage` "
            "shows what all the splits share."
        )
    if mode != "off":
        yield f"warning: {message}"


def training_question_digests(splits: Mapping[str, LoadedSplit]) -> dict[str, Any]:
    """What is kept beside an adapter about the questions that its round was sampled from: digests, and no text.

    `splits`: the training questions by member, under "" without members.
    """
    questions = [question for split in splits.values() for question in split.questions]
    return {
        "splits": {name or "train": split.facts() for name, split in splits.items()},
        "questions": sorted({_question_digest(question) for question in questions}),
        "documents": sorted({digest for question in questions for digest in _document_digests(question)}),
    }


def check_adapter_leakage(
    adapter: Path,
    questions: Sequence[Question],
    modes: LeakageConfig,
    name: str = "the evaluation",
    strict: bool = True,
) -> list[str]:
    """Raise UserError where an adapter was trained on some of `questions`; return the warnings.

    `name` is what the message calls the questions. Not `strict`: a warning at most, for train and dev themselves.
    """
    if modes.questions == modes.documents == "off":
        return []
    path = adapter / TRAINING_QUESTIONS
    if not path.exists():
        return [f"warning: {adapter} does not say which questions it was trained on (no {path.name}): not checked"]
    try:
        known = read_json_file(path)
        asked, documents = set(known["questions"]), set(known["documents"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot read ({error}); train again, or remove it to go without the check") from error
    same = [question.id for question in questions if _question_digest(question) in asked]
    near = [question.id for question in questions if _document_digests(question) & documents]
    part = f"of the {len(questions)} questions of {name}"
    warnings: list[str] = []
    if same:
        warnings += _stop_or_warn(
            "questions", modes, strict, f"{adapter} was trained on {len(same)} {part}", same[:MAX_SHOWN]
        )
    if near:
        message = f"{adapter} was trained on gold documents of {len(near)} {part}"
        warnings += _stop_or_warn("documents", modes, strict, message, near[:MAX_SHOWN])
    return warnings


def _question_digest(question: Question) -> str:
    return content_key("question", normalise_words(question.text))


def _document_digests(question: Question) -> set[str]:
    return {content_key("document", document) for document in gold_documents(question)}
