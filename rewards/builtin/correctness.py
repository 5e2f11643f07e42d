"""Nugget correctness, by the judge (rewards/correctness.py)."""

from ratchet.records import Question, Score, Trajectory
from rewards import correctness
from rewards.correctness import NuggetStore
from rewards.judge import ScoreJudge
from rewards.prompts import CORRECTNESS_VERSION as VERSION

__all__ = ["NEEDS", "PROMPTS", "TITLE", "VERSION", "score", "why_unscorable"]

TITLE = "Nugget correctness"
PROMPTS = ("nuggets.user", "nugget_score.user", "nugget_score_left_out_incorrect.user")
NEEDS = ("nuggets", "reference")


def why_unscorable(question: Question) -> str:
    """A question without both."""
    return "" if question.nuggets or question.reference else "the question has neither nuggets nor a reference"


async def score(question: Question, trajectory: Trajectory, judge: ScoreJudge, nuggets: NuggetStore) -> Score:
    """The mean over the nuggets."""
    return await correctness.correctness(judge.judge, nuggets, question, trajectory, judge.log)
