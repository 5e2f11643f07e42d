"""Faithfulness of the response's statements to its documents after RAGAS, by the judge (rewards/ragas.py)."""

from ratchet.records import Question, Score, Trajectory
from rewards import ragas
from rewards.judge import ScoreJudge
from rewards.ragas import RAGAS_FAITHFULNESS_VERSION as VERSION

__all__ = ["PROMPTS", "TITLE", "VERSION", "score"]

TITLE = "RAGAS faithfulness"
PROMPTS = ("statements.user", "support.user")


async def score(question: Question, trajectory: Trajectory, judge: ScoreJudge) -> Score:
    """The share of the statements that the documents support."""
    return await ragas.ragas_faithfulness(judge.judge, question, trajectory, judge.log)
