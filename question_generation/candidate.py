"""One candidate question: planned, written by a model, filtered, checked by a judge. Its record is always kept.

What a candidate is made of is decided before any model is asked, by seed, split and number alone. A question's
categories are drawn once; each of its attempts takes other documents. So the mix follows the categories file, not what
is easiest to write, and a run that was interrupted plans the same again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from ratchet.core.config import SPLITS, GenerationConfig, Split
from ratchet.core.records import Question, Record, content_key
from ratchet.index_build.documents import Document
from ratchet.question_generation.categories import Categories, two_documents, two_turns
from ratchet.question_generation.corpus import Corpus
from ratchet.question_generation.filters import rejection_reason
from ratchet.question_generation.prompts import Check, FollowUp, Pair, check_prompt, write_prompt
from ratchet.rewards.judge import CallLog, Judge, JudgeRequest, PromptTooLong


@dataclass(frozen=True)
class PlannedQuestion:
    """One question that is to be made."""

    split: Split
    number: int
    combination: int
    categories: dict[str, str]


@dataclass(frozen=True)
class Attempt:
    """One attempt at it."""

    key: str
    wanted: PlannedQuestion
    attempt: int
    documents: tuple[Document, ...]
    """Empty where two related documents are wanted and the split has none."""


@dataclass(frozen=True)
class Plan:
    """What decides which questions are made."""

    settings: GenerationConfig
    seed: int
    categories: Categories

    def questions(self) -> list[PlannedQuestion]:
        """All questions, split by split."""
        planned = []
        for split in SPLITS:
            for number in range(self.settings.wanted(split)):
                rng = random.Random(content_key("categories", self.seed, split, number))
                planned.append(PlannedQuestion(split, number, *self.categories.draw(rng)))
        return planned

    def attempt(self, wanted: PlannedQuestion, attempt: int, corpus: Corpus) -> Attempt:
        """Documents are taken in the pool's order, so that all are used before one is used again."""
        key = content_key("candidate", self.seed, wanted.split, wanted.number, attempt)
        start = wanted.number + attempt * self.settings.wanted(wanted.split)
        two = two_documents(wanted.categories)
        return Attempt(key, wanted, attempt, corpus.pools[wanted.split].draw(start, two, random.Random(key)))


class Candidate(Record):
    """A question that was tried."""

    key: str
    split: Split
    number: int
    attempt: int
    combination: int
    """Which of the categories file's combinations, counted from 1."""
    categories: dict[str, str]
    document_ids: tuple[str, ...]
    question: str = ""
    answer: str = ""
    first_turn: tuple[str, str] | None = None
    """The question and answer that this question follows up on."""
    dropped: str = ""
    """Why it is not used; empty for a good one, which may still be a copy of another (`generate.py`)."""
    replies: tuple[dict[str, Any], ...] = ()
    """Everything the models said, as they said it."""

    def as_question(self) -> Question:
        return Question(
            id=f"made-{self.key[:12]}",
            text=self.question,
            reference=self.answer,
            gold_ids=self.document_ids,
            kind=self.categories.get("document_granularity", ""),
        )


async def make_candidate(task: Attempt, plan: Plan, writer: Judge, judge: Judge, log: CallLog) -> Candidate:
    """Write, filter and check one. Raises JudgeError where an engine did not serve a call: nothing is decided then."""
    wanted = task.wanted
    about: dict[str, Any] = {
        "key": task.key,
        "split": wanted.split,
        "number": wanted.number,
        "attempt": task.attempt,
        "combination": wanted.combination,
        "categories": wanted.categories,
        "document_ids": tuple(document.id for document in task.documents),
    }
    if not task.documents:
        return Candidate(**about, dropped="no related document")
    chosen = plan.categories.chosen(wanted.categories)
    try:
        prompt = write_prompt(task.documents, wanted.categories, chosen, plan.settings.language)
        shape: type[Pair] | type[FollowUp] = FollowUp if two_turns(wanted.categories) else Pair
        (written,) = await writer.ask_all([JudgeRequest(prompt, shape, ("write", task.key))], task.key, log)
        about["replies"] = (written.stored(asked="write"),)
        pair = written.read(shape)
        if pair is None:
            return Candidate(**about, dropped="unreadable reply")
        question, answer = pair.question.strip(), pair.answer.strip()
        about |= {"question": question, "answer": answer}
        if isinstance(pair, FollowUp):
            about["first_turn"] = (pair.first_question, pair.first_answer)
        dropped = rejection_reason(question, answer, task.documents, chosen.values())
        if dropped:
            return Candidate(**about, dropped=dropped)
        check = JudgeRequest(check_prompt(task.documents, question, answer), Check, ("check", task.key, 0))
        (verdict,) = await judge.ask_all([check], task.key, log)
    except PromptTooLong:
        return Candidate(**about, dropped="too long for the model")
    except UnicodeEncodeError:
        return Candidate(**about, dropped="unreadable reply")
    about["replies"] += (verdict.stored(asked="check"),)
    return Candidate(**about, dropped=judge_rejection(verdict.read(Check)))


def judge_rejection(verdict: Check | None) -> str:
    """Why the judge's findings rule a candidate out, or ''. An unreadable verdict rules it out: it is no yes."""
    if verdict is None:
        return "unreadable verdict"
    if not verdict.stands_alone:
        return "does not stand alone"
    if not verdict.answerable:
        return "not answerable"
    if not verdict.supported:
        return "answer not supported"
    return ""
