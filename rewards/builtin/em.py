"""Exact match with one of the right answers, both normalised. No judge."""

from ratchet.core.records import Question, Trajectory
from ratchet.rewards import rules
from ratchet.rewards.inputs import Inputs
from ratchet.rewards.reward import Rule


def score(question: Question, trajectory: Trajectory, inputs: Inputs) -> float:
    """1 where the answer is a right one, else 0."""
    return rules.exact_match(trajectory.answer, rules.references(question), inputs.normalise)


REWARD = Rule(title="Exact match", version=rules.VERSION, score=score, needs=("answers", "reference"), normalises=True)
