"""The making of questions: what is planned, one candidate, and the run over all attempts.

What a candidate is made of is decided before any model is asked, by seed, split and number alone. A question's
categories are drawn once; each of its attempts takes other documents. So the mix follows the categories file, not what
is easiest to write, and a run that was interrupted plans the same again.

A candidate is written by a model, filtered, and checked by a judge; its record is on disk before it is counted, and is
always kept. An attempt is a round over the questions that are still missing, all candidates at once. Near copies are
found after a round, in a fixed order, so the outcome does not depend on which reply came first, nor on where a run was
interrupted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.core.config import SPLITS, GenerationConfig, RewardsConfig, Split
from ratchet.core.errors import UserError
from ratchet.core.files import Segment, read_segment
from ratchet.core.progress import Progress
from ratchet.core.records import Document, Question, Record, content_key
from ratchet.core.tasks import for_each
from ratchet.inference.engine import Engine
from ratchet.question_generation.corpus import Corpus
from ratchet.question_generation.filters import AcceptedQuestions, rejection_reason
from ratchet.question_generation.prompts import (
    Categories,
    Check,
    FollowUp,
    Pair,
    check_prompt,
    two_documents,
    two_turns,
    write_prompt,
)
from ratchet.rewards.judge import CallLog, Judge, JudgeError, JudgeRequest, PromptTooLong

TEMPERATURE = 0.7
"""The writer's temperature. The judge's is 0."""


class Candidate(Record):
    """A question: planned, without a key, or tried."""

    key: str = ""
    split: Split
    number: int
    attempt: int = 0
    combination: int
    """Number of the combination in the categories file, from 1."""
    categories: dict[str, str]
    document_ids: tuple[str, ...] = ()
    question: str = ""
    answer: str = ""
    first_turn: tuple[str, str] | None = None
    """The question and answer that this question follows up on."""
    dropped: str = ""
    """Why it is not used; empty for a good one, which may still be a copy of another."""
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


Attempt = tuple[Candidate, tuple[Document, ...]]
"""A candidate to be made, and its documents: none where two related ones are wanted and the split has none."""


@dataclass(frozen=True)
class Plan:
    """The settings, the seed and the categories, which decide which questions are made."""

    settings: GenerationConfig
    seed: int
    categories: Categories

    def questions(self) -> list[Candidate]:
        planned = []
        for split in SPLITS:
            for number in range(self.settings.wanted(split)):
                rng = random.Random(content_key("categories", self.seed, split, number))
                combination, categories = self.categories.draw(rng)
                planned.append(Candidate(split=split, number=number, combination=combination, categories=categories))
        return planned

    def attempt(self, planned: Candidate, attempt: int, corpus: Corpus) -> Attempt:
        """Documents are taken in the pool's order, so that all are used before one is used again."""
        key = content_key("candidate", self.seed, planned.split, planned.number, attempt)
        start = planned.number + attempt * self.settings.wanted(planned.split)
        two = two_documents(planned.categories)
        documents = corpus.pools[planned.split].draw(start, two, random.Random(key))
        ids = tuple(document.id for document in documents)
        return planned.model_copy(update={"key": key, "attempt": attempt, "document_ids": ids}), documents


async def make_candidate(task: Attempt, plan: Plan, writer: Judge, judge: Judge, log: CallLog) -> Candidate:
    """Write, filter and check one. Raises JudgeError where an engine did not serve a call: nothing is decided then."""
    planned, documents = task
    key, categories, found = planned.key, planned.categories, dict[str, Any]()

    def finish(dropped: str) -> Candidate:
        return Candidate(**dict(planned) | found | {"dropped": dropped})

    if not documents:
        return finish("no related document")
    chosen = plan.categories.chosen(categories)
    try:
        prompt = write_prompt(documents, categories, chosen, plan.settings.language)
        shape: type[Pair] | type[FollowUp] = FollowUp if two_turns(categories) else Pair
        (written,) = await writer.ask_all([JudgeRequest(prompt, shape, ("write", key))], key, log)
        found["replies"] = (written.stored(asked="write"),)
        pair = written.read(shape)
        if pair is None:
            return finish("unreadable reply")
        question, answer = pair.question.strip(), pair.answer.strip()
        found |= {"question": question, "answer": answer}
        if isinstance(pair, FollowUp):
            found["first_turn"] = (pair.first_question, pair.first_answer)
        if dropped := rejection_reason(question, answer, documents, chosen.values()):
            return finish(dropped)
        check = JudgeRequest(check_prompt(documents, question, answer), Check, ("check", key, 0))
        (verdict,) = await judge.ask_all([check], key, log)
    except PromptTooLong:
        return finish("too long for the model")
    except UnicodeEncodeError:
        return finish("unreadable reply")
    found["replies"] += (verdict.stored(asked="check"),)
    return finish(judge_rejection(verdict.read(Check)))


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


async def generate(
    plan: Plan, corpus: Corpus, engine: Engine, folder: Path, concurrency: int
) -> tuple[Outcome, list[Candidate]]:
    """Make the missing candidates, `concurrency` at a time; returns what is accepted, and all candidates."""
    path, settings, wanted = folder / "candidates.jsonl", plan.settings, plan.questions()

    def open_judge(temperature: float) -> Judge:
        how = RewardsConfig(judge=settings.model, temperature=temperature, max_tokens=settings.max_tokens)
        return Judge(engine, how, plan.seed, concurrency, lengthen=False)

    writer, judge = open_judge(TEMPERATURE), open_judge(0.0)
    with Segment(path) as segment:
        done = {candidate.key: candidate for candidate in read_segment(path, Candidate)}
        with CallLog(folder / "calls.jsonl", set(done)) as log:

            async def make(task: Attempt) -> Candidate:
                candidate = await make_candidate(task, plan, writer, judge, log)
                segment.append(candidate)
                log.forget(candidate.key)
                done[candidate.key] = candidate
                return candidate

            outcome = accept_candidates([])
            for attempt in range(settings.attempts):
                have = {(candidate.split, candidate.number) for candidate in outcome.accepted}
                tasks = [
                    plan.attempt(question, attempt, corpus)
                    for question in wanted
                    if (question.split, question.number) not in have
                ]
                if not tasks:
                    break
                missing = [task for task in tasks if task[0].key not in done]
                title = f"questions, attempt {attempt + 1} of {settings.attempts} at most"
                with Progress(title, len(tasks), len(tasks) - len(missing)) as progress:
                    await _make_all(missing, make, progress, concurrency)
                outcome = accept_candidates(c for c in done.values() if c.attempt <= attempt)
    # A candidate of an attempt that was made under more attempts than are now asked for is no part of this run.
    return outcome, [c for c in done.values() if c.attempt < settings.attempts]


async def _make_all(
    tasks: Sequence[Attempt], make: Callable[[Attempt], Awaitable[Candidate]], progress: Progress, concurrency: int
) -> None:
    """Make all candidates of one attempt. Raises UserError where an engine did not serve some of them."""
    failures: list[JudgeError] = []
    good = 0

    async def try_to_make(task: Attempt) -> None:
        nonlocal good
        try:
            good += not (await make(task)).dropped
            progress.advance(note=f"{good} good")
        except JudgeError as failure:
            failures.append(failure)

    await for_each(tasks, try_to_make, concurrency)
    if failures:
        raise UserError(
            f"{len(failures)} of {len(tasks)} candidates are unfinished, such as: {failures[0]}. Everything else is "
            "kept: run the same command again."
        )


class Outcome(Record):
    """Which candidates are accepted, and which are near copies."""

    accepted: tuple[Candidate, ...]
    copies: dict[str, str]
    """Key of a good candidate to that of the accepted question that it nearly copies."""


def accept_candidates(candidates: Iterable[Candidate]) -> Outcome:
    """Accept good candidates in order of attempt, split and number. A question that nearly copies an accepted one is
    dropped, also where the two are in different splits."""
    accepted: dict[tuple[Split, int], Candidate] = {}
    copies: dict[str, str] = {}
    seen = AcceptedQuestions()
    for c in sorted(candidates, key=lambda c: (c.attempt, SPLITS.index(c.split), c.number)):
        if c.dropped or (c.split, c.number) in accepted:
            continue
        original = seen.copy_of(c.question)
        if original is None:
            accepted[c.split, c.number] = c
            seen.add(c.key, c.question)
        else:
            copies[c.key] = original
    order = sorted(accepted, key=lambda place: (SPLITS.index(place[0]), place[1]))
    return Outcome(accepted=tuple(accepted[place] for place in order), copies=copies)


def summarise(outcome: Outcome, candidates: Sequence[Candidate], settings: GenerationConfig) -> dict[str, Any]:
    """The numbers: per split, and why candidates were dropped."""
    splits = {}
    for split in SPLITS:
        asked = settings.wanted(split)
        got = sum(c.split == split for c in outcome.accepted)
        tried = sum(c.split == split for c in candidates)
        splits[split] = {"wanted": asked, "accepted": got, "missing": asked - got, "candidates": tried}
    dropped = Counter(c.dropped for c in candidates if c.dropped)
    dropped["near copy of another question"] = len(outcome.copies)
    return {
        "splits": splits,
        "dropped": {reason: count for reason, count in dropped.most_common() if count},
        "copies": outcome.copies,
    }


def summary_lines(report: dict[str, Any]) -> list[str]:
    """The account as text."""
    text = [
        f"{split}: {n['accepted']} of {n['wanted']} questions, from {n['candidates']} candidates"
        for split, n in report["splits"].items()
        if n["wanted"]
    ]
    if report["dropped"]:
        text += ["dropped: " + ", ".join(f"{count} {reason}" for reason, count in report["dropped"].items())]
    return text
