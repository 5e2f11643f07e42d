"""Accuracy of labels: whether the answer is the question's label. No judge."""

from ratchet.core.records import Question, Trajectory
from ratchet.rewards import rules
from ratchet.rewards.inputs import Inputs
from ratchet.rewards.reward import Rule


def score(question: Question, trajectory: Trajectory, inputs: Inputs) -> float | None:
    """1 where the answer is the label, else 0."""
    return rules.accuracy(trajectory.answer, question)


REWARD = Rule(title="Accuracy", version=rules.VERSION, score=score, needs=("label",))
