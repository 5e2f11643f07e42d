"""Word F1 with the right answer that it is best with. No judge."""

from ratchet.core.records import Question, Trajectory
from ratchet.rewards import rules
from ratchet.rewards.inputs import Inputs
from ratchet.rewards.reward import Rule


def score(question: Question, trajectory: Trajectory, inputs: Inputs) -> float:
    """The harmonic mean of word precision and recall."""
    return rules.token_f1(trajectory.answer, rules.references(question), inputs.normalise)


REWARD = Rule(title="F1", version=rules.VERSION, score=score, needs=("answers", "reference"), normalises=True)
