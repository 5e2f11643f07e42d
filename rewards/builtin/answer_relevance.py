"""RAGAS answer relevance: the mean cosine of the question and of questions generated from the response.

Es et al. 2023 (arXiv 2309.15217), by the judge and the embedder. It takes 3 judge calls a run.

The reasons of "NOT ENOUGH INFO" are noncommittal, so their relevance is 0, as RAGAS has it: where such a label can be
right, weigh relevance lightly or not at all.
"""

from agents.core import ragas
from ratchet.records import Question, Score, Trajectory
from ratchet.tasks import gather_or_cancel
from rewards.inputs import ScoreJudge
from rewards.material import version_of
from rewards.ragas import PROMPTS, asker, mean_of_runs
from rewards.reward import Judged

QUESTIONS = 3
"""The number of questions that are generated for a response."""


async def score(question: Question, trajectory: Trajectory, judge: ScoreJudge) -> Score:
    """The mean of the runs. Raises UserError where the embedder is not available."""
    response, fill_in = trajectory.response, judge.fill_in
    runs = await gather_or_cancel(
        [
            ragas.answer_relevance(
                asker(judge, trajectory, run), judge.embed, question, response, QUESTIONS, prompt=fill_in
            )
            for run in judge.runs
        ]
    )
    return mean_of_runs("answer_relevance", trajectory, runs)


REWARD = Judged(
    title="RAGAS relevance",
    version=version_of(ragas.QUESTION, QUESTIONS, "end of the question"),
    score=score,
    needs_embedder=True,
    prompts={"generated_question.user": PROMPTS["generated_question.user"]},
)
