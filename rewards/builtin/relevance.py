"""Relevance of the response to its question beside the expected output, by the judge, from -1 to 2 and normalised.

It is an axis of mRAG's published code, whose reward is (relevance + 4 correctness + faithfulness) / 6, and not of its
paper (Salemi et al. 2025, arXiv 2506.10844). The published code asks for it in one call with an equivalence score,
which it then replaces by nugget correctness; here it is a call of its own. The words of the prompt are ours.
"""

from statistics import fmean

from ratchet.records import Question, Trajectory
from rewards.judge import ScoreJudge
from rewards.prompts import RELEVANCE_VERSION as VERSION
from rewards.prompts import AspectVerdict, expected_output, relevance_prompt

__all__ = ["NEEDS", "PROMPTS", "TITLE", "VERSION", "score", "why_unscorable"]

TITLE = "Relevance"
PROMPTS = ("relevance.user",)
NEEDS = ("reference", "answers", "nuggets")


def why_unscorable(question: Question) -> str:
    """A question without a text to compare with."""
    return "" if expected_output(question) else "the question has no reference, answers or nuggets"


async def score(question: Question, trajectory: Trajectory, judge: ScoreJudge) -> tuple[float | None, str]:
    """The mean of (s + 1) / 3 over the judge's readable replies, one a run."""
    prompt = relevance_prompt(question, expected_output(question), trajectory.answer, judge.judge.prompts)
    scores = [reply.score for reply in await judge.ask(prompt, AspectVerdict) if reply is not None]
    return ((fmean(scores) + 1) / 3, "") if scores else (None, "no readable verdict")
