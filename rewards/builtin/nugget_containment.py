"""The share of the question's nuggets that occur in the answer. No judge."""

from ratchet.records import Question, Trajectory
from rewards import rules
from rewards.rules import VERSION as VERSION

TITLE = "Nugget containment"
NEEDS = ("nuggets",)


def why_unscorable(question: Question) -> str:
    """A nugget without a word is none."""
    return "the question has no nuggets" if rules.nugget_containment("", question.nuggets) is None else ""


def score(question: Question, trajectory: Trajectory) -> float | None:
    """The share of the nuggets."""
    return rules.nugget_containment(trajectory.answer, question.nuggets)
