"""Word F1 with the right answer that it is best with. No judge."""

from ratchet.records import Question, Trajectory
from ratchet.text import Normalise, normalise_answer
from rewards.rules import VERSION as VERSION
from rewards.rules import references, token_f1

TITLE = "F1"
NEEDS = ("answers", "reference")


def score(question: Question, trajectory: Trajectory, normalise: Normalise = normalise_answer) -> float:
    """The harmonic mean of word precision and recall."""
    return token_f1(trajectory.answer, references(question), normalise)
