"""The share of the question's nuggets that occur in the answer. No judge."""

from ratchet.records import Question, Trajectory
from ratchet.text import normalise_answer
from rewards import rules
from rewards.rules import VERSION as VERSION

TITLE = "Nugget containment"
NEEDS = ("nuggets",)


def why_unscorable(question: Question) -> str:
    """A nugget without a word is none."""
    return "" if any(map(normalise_answer, question.nuggets)) else "the question has no nuggets"


def score(question: Question, trajectory: Trajectory) -> float | None:
    """The share of the nuggets."""
    return rules.nugget_containment(trajectory.answer, question.nuggets)
