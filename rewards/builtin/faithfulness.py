"""Faithfulness of the answer's claims to its documents, by the judge (rewards/claims.py)."""

from ratchet.records import Question, Score, Trajectory
from rewards import claims
from rewards.judge import ScoreJudge
from rewards.prompts import FAITHFULNESS_VERSION as VERSION

__all__ = ["PROMPTS", "TITLE", "VERSION", "score"]

TITLE = "Faithfulness"
PROMPTS = ("claims.user", "claim_support.user")


async def score(question: Question, trajectory: Trajectory, judge: ScoreJudge) -> Score:
    """The mean over the claims."""
    return await claims.faithfulness(judge.judge, question, trajectory, judge.log)
