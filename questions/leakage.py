"""Leakage: what training and evaluation share, and the checks that stop a run because of it (`questions.leakage`).

Two questions are the same where they have the same words in the same order, whatever the case and the punctuation
(`same_question_key`): neither a paraphrase nor a question with one word more is found. Gold documents are compared by
id and by title.

`check_leakage` compares a config's splits before sampling and training. `check_adapter_leakage` checks an adapter,
whatever config it was trained with: beside it lie digests of its training questions, so both are found without their
texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from ratchet.core.config import Config, LeakageConfig
from ratchet.core.errors import UserError
from ratchet.core.files import read_json_file
from ratchet.core.records import Question, content_key
from ratchet.questions.load import LoadedSplit, load_split, same_question_key

TRAINING_QUESTIONS = "training_questions.json"
"""The file of `training_question_digests` beside an adapter."""
MAX_SHOWN = 3
"""Leaked questions that a message shows."""


@dataclass(frozen=True)
class LeakageMatch:
    """A test question, and a training question that it shares something with: their ids."""

    train: str
    test: str
    share: float = 1.0
    """Share of the test question's gold documents that training has."""


@dataclass(frozen=True)
class Leakage:
    """At most one match of a kind for each test question, in the test's order."""

    questions: tuple[LeakageMatch, ...] = ()
    """Questions that training has as well."""
    documents: tuple[LeakageMatch, ...] = ()
    """Questions with a gold document that training has as well."""


def find_leakage(train: Sequence[Question], test: Sequence[Question]) -> Leakage:
    """Find the questions and gold documents of `test` that are in `train`."""
    known = {same_question_key(question.text): question.id for question in reversed(train)}
    keys = [(question.id, same_question_key(question.text)) for question in test]
    same = tuple(LeakageMatch(known[key], name) for name, key in keys if key in known)
    documents: dict[str, str] = {}
    for question in train:
        for document in gold_documents(question):
            documents.setdefault(document, question.id)
    shared = []
    for question in test:
        gold = sorted(gold_documents(question))
        if held := [document for document in gold if document in documents]:
            shared.append(LeakageMatch(documents[held[0]], question.id, len(held) / len(gold)))
    return Leakage(same, tuple(shared))


def gold_documents(question: Question) -> frozenset[str]:
    """Its gold documents by id and by title, so that the two do not mix."""
    titles = (f"title {same_question_key(title)}" for title in question.gold_titles)
    return frozenset((*(f"id {document}" for document in question.gold_ids), *titles))


@dataclass(frozen=True)
class SplitLeakage:
    """Two splits of a config, and the leaks from the first to the second."""

    first: str
    second: str
    count: int
    """Questions of the second."""
    leaks: Leakage
    sources: tuple[str, str]

    def shown(self, leaks: Sequence[LeakageMatch]) -> list[str]:
        return [
            f"{leak.test} ({self.sources[1]}) and {leak.train} ({self.sources[0]})"
            + (f": {leak.share:.0%} of its gold documents" if leak.share < 1 else "")
            for leak in leaks[:MAX_SHOWN]
        ]


def leakage_between_splits(config: Config, pairs: Iterable[tuple[str, str]] | None = None) -> list[SplitLeakage]:
    """The leaks from the first split of each pair to the second; by default of every pair."""
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
    """Raise UserError where training shares questions or documents with evaluation; return the warnings. dev, which is
    for choosing and not for reported numbers, gives a warning at most."""
    modes = config.questions.leakage
    if modes.questions == modes.documents == "off":
        return []
    train, *others = config.splits
    if train != "questions.train":
        return []
    warnings: list[str] = []
    for overlap in leakage_between_splits(config, [(train, other) for other in others]):
        leaks, strict = overlap.leaks, overlap.second != "questions.dev"
        part = f"of the {overlap.count} questions of {overlap.second}"
        if leaks.questions:
            message = f"{len(leaks.questions)} {part} are in {train} as well"
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
    """The digests that an adapter keeps of its training questions, without their texts. `splits`: by member, or ""."""
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
    """Raise UserError where an adapter was trained on some of `questions`, called `name`; return the warnings. Not
    `strict`: a warning at most, for train and dev themselves."""
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
    shared = [question.id for question in questions if _document_digests(question) & documents]
    part = f"of the {len(questions)} questions of {name}"
    warnings: list[str] = []
    if same:
        warnings += _stop_or_warn(
            "questions", modes, strict, f"{adapter} was trained on {len(same)} {part}", same[:MAX_SHOWN]
        )
    if shared:
        message = f"{adapter} was trained on gold documents of {len(shared)} {part}"
        warnings += _stop_or_warn("documents", modes, strict, message, shared[:MAX_SHOWN])
    return warnings


def _question_digest(question: Question) -> str:
    return content_key("question", same_question_key(question.text))


def _document_digests(question: Question) -> set[str]:
    return {content_key("document", document) for document in gold_documents(question)}
