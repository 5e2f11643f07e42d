"""Precision of the answer's claims against the reference, by the judge (rewards/claims.py)."""

from collections.abc import Mapping

from ratchet.records import Question, Score, Trajectory
from rewards import claims
from rewards.judge import ScoreJudge
from rewards.prompts import PRECISION_VERSION as VERSION
from rewards.prompts import expected_output

__all__ = ["AFTER", "NEEDS", "PROMPTS", "TITLE", "VERSION", "score", "why_unscorable"]

TITLE = "Precision of claims"
PROMPTS = ("claims.user", "claim_precision.user")
NEEDS = ("reference", "answers", "nuggets")
AFTER = ("faithfulness",)
"""Its claims are reused."""


def why_unscorable(question: Question) -> str:
    """A question without a text to compare with."""
    return "" if expected_output(question) else "the question has no reference, answers or nuggets"


async def score(question: Question, trajectory: Trajectory, judge: ScoreJudge, scores: Mapping[str, Score]) -> Score:
    """The mean over the claims."""
    return await claims.precision(judge.judge, question, trajectory, judge.log, scores.get("faithfulness"))
