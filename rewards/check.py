"""Checks of a config's questions, for its rewards and its index, before anything is sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from ratchet.core.config import IndexConfig, is_missing
from ratchet.core.errors import UserError
from ratchet.core.records import Question
from ratchet.questions.load import LoadedSplit, is_answered, same_question_key
from ratchet.retrieval.index import Store
from ratchet.rewards.reward import load_reward

TRAIN = "questions.train"
"""The key of the questions that are trained on."""
MAX_SHOWN = 5
"""Questions that a message names."""


def check_questions(
    splits: Mapping[str, LoadedSplit], trained: Iterable[str], measured: Iterable[str], index: IndexConfig | None
) -> list[str]:
    """Check questions against the scores that they get, and return what is worth a warning.

    `splits`: by key, such as "questions.train"; `trained`: names of the scores of training questions; `measured`: of
    the others; `index`: where the documents are that a question names as holding its answer, if that is to be looked
    at. Raises UserError where no training question can be scored, since all of them would be sampled for nothing.
    """
    named = any(question.gold_ids for split in splits.values() for question in split.questions)
    store = _store(index) if index is not None and named else None
    warnings: list[str] = []
    for key, split in splits.items():
        is_trained, questions = key == TRAIN, split.questions
        for name in trained if is_trained else measured:
            reward = load_reward(name)
            lacking = [question.id for question in questions if reward.why_unscorable(question)]
            if not lacking:
                continue
            fields = " or ".join(reward.needs) or "what it needs"
            message = (
                f"{key}: {len(lacking)} of {len(questions)} questions have no {fields}, which the score {name!r} "
                f"compares with: {_first(lacking)}"
            )
            if is_trained and len(lacking) == len(questions):
                raise UserError(f"{message}\nAdd it to the questions, or set other rewards.weights")
            result = "nothing is learnt from them" if is_trained else f"they get no {name}"
            warnings.append(f"warning: {message}; {result}")
        if index is None or store is None:
            continue
        unknown = [
            one.id
            for one in questions
            if not one.gold_titles and not all(len(store.chunks_of(gold)) for gold in one.gold_ids)
        ]
        if unknown:
            warnings.append(
                f"warning: {key}: {len(unknown)} of {sum(bool(question.gold_ids) for question in questions)} questions "
                f"name gold documents that {index.path} does not hold: {_first(unknown)}; their retrieval measures are "
                "too low"
            )
    return warnings


def check_corpus(
    splits: Mapping[str, Sequence[Question]], index: IndexConfig, mode: Literal["warn", "stop", "off"]
) -> list[str]:
    """Check that the index holds no gold document of these questions, as `questions.leakage.corpus` (`mode`) asks.

    `splits`: by key, such as "questions.test". A gold id counts as it is, and without what names its benchmark:
    `pubmedqa:123` is `123` in a PubMed corpus of one's own. Raises UserError for `stop`; returns warnings.
    """
    if mode == "off" or (store := _store(index)) is None:
        return []
    warnings = []
    for key, questions in splits.items():
        askers = {gold: question.id for question in questions for gold in question.gold_ids}
        held = [gold for gold in askers if any(len(store.chunks_of(name)) for name in (gold, gold.rpartition(":")[2]))]
        if held:
            message = (
                f"{key}: {index.path} holds gold documents of {len({askers[gold] for gold in held})} of "
                f"{len(questions)} questions: {', '.join(held[:MAX_SHOWN])}; build the index without them "
                "(`ratchet questions evidence ... --without NAME/SPLIT`, or remove these ids from your corpus)"
            )
            if mode == "stop":
                raise UserError(f"{message}, or set questions.leakage.corpus=off")
            warnings.append(f"warning: {message}")
    return warnings


def question_flaws(split: LoadedSplit) -> list[str]:
    """Warnings of questions that are asked twice, answered in two ways, or not answered at all, each with how many
    there are and the file and line of the first of them."""
    first: dict[str, tuple[str, Question]] = {}
    repeated: list[str] = []
    contradicting: list[str] = []
    unanswered: list[str] = []
    for question in split.questions:
        place = split.places.get(question.id, question.id)
        before, other = first.setdefault(same_question_key(question.text), (place, question))
        if other is not question:
            (repeated if _agree(other, question) else contradicting).append(f"{place} as {before}")
        if not is_answered(question):
            unanswered.append(place)
    flaws = [
        (contradicting, "repeat an earlier question with another answer; keep the right one"),
        (repeated, "repeat an earlier question with the same answer; remove them, or they count twice"),
        (unanswered, "have no answer, reference, label or nuggets, so no reward can recognise a right answer"),
    ]
    return [f"warning: {len(places)} questions {what} ({_first(places)})" for places, what in flaws if places]


def _agree(one: Question, other: Question) -> bool:
    answers = [{answer.casefold().strip() for answer in question.answers} for question in (one, other)]
    same = not answers[0].isdisjoint(answers[1]) or not any(answers)
    return same and (one.reference, one.label, one.nuggets) == (other.reference, other.label, other.nuggets)


def describe_splits(splits: Mapping[str, LoadedSplit]) -> Iterator[str]:
    """A line for each split: how many questions there are, and what they are scored by."""
    for key, split in splits.items():
        fields = Counter(
            field
            for question in split.questions
            for field in ("answers", "reference", "label", "nuggets", "gold_ids")
            if getattr(question, field)
        )
        parts = ", ".join(f"{count} with {field}" for field, count in fields.items()) or "none with an answer"
        yield f"{key}: {len(split.questions)} questions of {split.source}: {parts}"


def _store(index: IndexConfig) -> Store | None:
    """The chunks of an index, of the first part where it is fused; None where it is not built, or is a server."""
    folder = None if is_missing(index) else next((Path(part.path) for part in index.built.values()), None)
    if folder is None or not (folder / "manifest.json").exists():
        return None
    from ratchet.retrieval.loader import open_folder

    return open_folder(folder).store


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more
