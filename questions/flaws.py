"""What is odd in questions that can be read: asked twice, answered in two ways, or not answered at all."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.core.records import Question
from ratchet.questions.load import LoadedSplit, is_answered, same_question_key

MAX_SHOWN = 5
"""Questions that a warning names."""


def question_flaws(splits: Sequence[LoadedSplit]) -> list[str]:
    """Warnings, each with how many questions it is about and the file and line of the first of them."""
    first: dict[str, tuple[str, Question]] = {}
    repeated: list[str] = []
    contradicting: list[str] = []
    unanswered: list[str] = []
    for split in splits:
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
    return [f"warning: {len(places)} questions {what} ({_shown(places)})" for places, what in flaws if places]


def _agree(one: Question, other: Question) -> bool:
    """Whether they share an answer, or have none, and are equal in what else says which answer is right."""
    answers = [{answer.casefold().strip() for answer in question.answers} for question in (one, other)]
    same = not answers[0].isdisjoint(answers[1]) or not any(answers)
    return same and (one.reference, one.label, one.nuggets) == (other.reference, other.label, other.nuggets)


def _shown(places: Sequence[str]) -> str:
    more = f" and {len(places) - MAX_SHOWN} more" if len(places) > MAX_SHOWN else ""
    return ", ".join(places[:MAX_SHOWN]) + more
