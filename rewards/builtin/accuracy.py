"""Accuracy of labels: whether the answer is the question's label. No judge."""

from ratchet.records import Question, Trajectory
from rewards import rules
from rewards.rules import VERSION as VERSION

TITLE = "Accuracy"
NEEDS = ("label",)


def score(question: Question, trajectory: Trajectory) -> float | None:
    """1 where the answer is the label, else 0."""
    return rules.accuracy(trajectory.answer, question)
