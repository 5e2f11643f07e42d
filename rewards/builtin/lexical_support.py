"""The share of the response's content words that its documents contain. No judge."""

from ratchet.core.records import Question, Trajectory
from ratchet.rewards import rules
from ratchet.rewards.inputs import Inputs
from ratchet.rewards.reward import Rule


def score(question: Question, trajectory: Trajectory, inputs: Inputs) -> tuple[float | None, str]:
    """The share of the words, null for a response without any."""
    value = rules.lexical_support(trajectory.response, trajectory.passages)
    return value, "the answer has no content words" if value is None else ""


REWARD = Rule(title="Lexical support", version=rules.VERSION, score=score)
