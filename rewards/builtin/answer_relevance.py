"""Relevance of the response to its question after RAGAS, by the judge and the embedder (rewards/ragas.py)."""

from ratchet.records import Question, Score, Trajectory
from retrieval.encoders.dense import Embed
from rewards import ragas
from rewards.judge import ScoreJudge
from rewards.ragas import ANSWER_RELEVANCE_VERSION as VERSION

__all__ = ["PROMPTS", "TITLE", "VERSION", "score"]

TITLE = "RAGAS relevance"
PROMPTS = ("generated_question.user",)


async def score(question: Question, trajectory: Trajectory, judge: ScoreJudge, embed: Embed) -> Score:
    """The mean cosine of the question and the questions that the response answers."""
    return await ragas.answer_relevance(judge.judge, embed, question, trajectory, judge.log)
