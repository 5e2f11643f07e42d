"""Measures of retrieval: whether it found the answer itself, and the gold documents.

Both are measured twice: over everything the trajectory retrieved (all its searches and tool calls together, however
deep each went, and what it recalled from its memory) and over the documents it returned with its answer. A trajectory
that finished without looking anything up has no value: there is no retrieval to measure. One that searched and found
nothing, or returned nothing, has 0; so has one that failed, or ended otherwise before it looked anything up, of an arm
that does look things up.

Answer recall is DPR's has_answer (Karpukhin and others, EMNLP 2020): 1 when a passage holds one of the short answers as
a run of whole tokens, lower-cased: letters, digits and marks, or single signs; articles and punctuation count, unlike
in EM. Deviations: a passage is its title and its text, as a reader sees it (an option in DPR; FlashRAG does so too);
texts are brought into one spelling (`ratchet.core.text.fold_typography`; DPR decomposes letters alone); invisible
characters do not count, and a letter of a script without blanks between words is a token (core/words.py), where DPR
takes its whole run for one; a question whose answers are all yes, no or noanswer has no value, since the word says
nothing about the passage. FlashRAG and KILT match substrings of normalised text instead, which finds 'Ada' in 'Canada'.

Gold recall is the share of the question's gold documents that are there, by document id or by title. A question that
names its documents in both ways counts the way that finds more: an index may know only one of the names.
"""

from __future__ import annotations

from collections.abc import Iterable

import regex

from ratchet.core.records import Passage, Question, Recall, Search, ToolCall, Trajectory
from ratchet.core.text import fold_typography, normalise_answer
from ratchet.core.words import INVISIBLE, separate_unspaced
from ratchet.rewards.rules import CLOSED_ANSWERS, gold_recall

LOSSES = ("not_retrieved", "not_returned", "misread")
TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def lookups(trajectory: Trajectory) -> list[Search | ToolCall | Recall]:
    """The trajectory's searches and tool calls, and its recalls from memory that found something."""
    recalled = [event for event in trajectory.events if isinstance(event, Recall) and event.passages]
    return [*trajectory.tool_calls, *recalled]


def retrieval_measures(question: Question, trajectory: Trajectory, retrieves: bool = True) -> dict[str, float | None]:
    """The measures of group 'retrieval', by name. `retrieves`: whether the trajectory's arm looks anything up."""
    failed = trajectory.status == "failed"
    looks = [] if failed else lookups(trajectory)
    searched = bool(looks) or (retrieves and trajectory.status != "finished")
    retrieved = {passage.id: passage for look in looks for passage in look.passages}
    measures: dict[str, float | None] = {"passages": float(len(retrieved)) if searched else None}
    for ending, passages in (("", list(retrieved.values())), ("_returned", () if failed else trajectory.passages)):
        measures[f"answer_recall{ending}"] = answer_recall(question, passages) if searched else None
        measures[f"gold_recall{ending}"] = gold_recall(question, passages) if searched else None
    return measures


def losses(question: Question, trajectory: Trajectory, f1: float | None) -> dict[str, float | None]:
    """The place where a wrong answer, one with an F1 below 0.5, was lost: 1.0 for one of LOSSES, 0.0 for the others.

    All are 0.0 for a right answer, and None where `f1` is None or the question has no searchable short answer.
    """
    retrieved = [passage for look in lookups(trajectory) for passage in look.passages]
    found, returned = answer_recall(question, retrieved), answer_recall(question, trajectory.passages)
    if f1 is None or found is None:
        return dict.fromkeys(LOSSES)
    place = "misread" if returned else "not_returned" if found else "not_retrieved"
    return {name: float(f1 < 0.5 and name == place) for name in LOSSES}


def answer_recall(question: Question, passages: Iterable[Passage]) -> float | None:
    """1.0 when a passage holds a short answer, else 0.0; None for a question without a searchable short answer."""
    if all(normalise_answer(answer) in CLOSED_ANSWERS for answer in question.answers):
        return None
    wanted = [words for answer in question.answers if (words := tokens(answer)) != "  "]
    return (
        float(any(answer in tokens(f"{p.title} . {p.text}") for p in passages for answer in wanted)) if wanted else None
    )


def tokens(text: str) -> str:
    """The text's tokens with a blank before and after each, so that `in` finds runs of whole tokens."""
    seen = INVISIBLE.sub("", fold_typography(text)).lower()
    return f" {' '.join(TOKEN.findall(separate_unspaced(seen, pairs=False)))} "
