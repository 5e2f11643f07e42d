"""What is odd in questions that can be read: asked twice, answered in two ways, or not answered at all."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.records import Question

MAX_SHOWN = 5
"""Questions that a warning names."""


def question_flaws(questions: Sequence[Question]) -> list[str]:
    """Warnings, each with how many questions it is about and the first of them by id."""
    first: dict[str, Question] = {}
    repeated: list[str] = []
    contradicting: list[str] = []
    for question in questions:
        other = first.setdefault(" ".join(question.text.casefold().split()), question)
        if other is not question:
            same = _answer(other) == _answer(question)
            (repeated if same else contradicting).append(f"{question.id} as {other.id}")
    unanswered = [question.id for question in questions if not any(_answer(question))]
    flaws = [
        (contradicting, "are asked before with another answer; keep the right one"),
        (repeated, "are asked before with the same answer; remove them, or they count twice"),
        (unanswered, "have no answer, reference, label or nuggets; nothing can reward a right answer to them"),
    ]
    return [f"warning: {len(found)} questions {what} ({_shown(found)})" for found, what in flaws if found]


def _answer(question: Question) -> tuple[object, ...]:
    return question.answers, question.reference, question.label, question.nuggets


def _shown(found: Sequence[str]) -> str:
    more = f" and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
    return ", ".join(found[:MAX_SHOWN]) + more
