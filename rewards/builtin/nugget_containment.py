"""The share of the question's nuggets that occur in the answer. No judge."""

from ratchet.core.records import Question, Trajectory
from ratchet.rewards import rules
from ratchet.rewards.inputs import Inputs
from ratchet.rewards.reward import Rule


def score(question: Question, trajectory: Trajectory, inputs: Inputs) -> float | None:
    """The share of the nuggets."""
    return rules.nugget_containment(trajectory.answer, question.nuggets)


def _without_nuggets(question: Question) -> str:
    """A nugget without a word is none."""
    return "the question has no nuggets" if rules.nugget_containment("", question.nuggets) is None else ""


REWARD = Rule(
    title="Nugget containment",
    version=rules.VERSION,
    score=score,
    needs=("nuggets",),
    unscorable=_without_nuggets,
)
