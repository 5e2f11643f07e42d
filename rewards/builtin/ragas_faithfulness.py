"""RAGAS faithfulness: the share of the response's statements that its documents support, by the judge.

Es et al. 2023 (arXiv 2309.15217). It takes 2 judge calls a run. A run that finds no statement in the response has 0,
where the RAGAS library has no number.
"""

from dataclasses import replace

from agents.core import ragas
from ratchet.records import Question, Score, Trajectory
from ratchet.tasks import gather_or_cancel
from rewards.inputs import ScoreJudge
from rewards.material import version_of
from rewards.ragas import PROMPTS, asker, mean_of_runs
from rewards.reward import Judged


async def score(question: Question, trajectory: Trajectory, judge: ScoreJudge) -> Score:
    """The mean of the runs, from 0 to 1."""
    response, passages, fill_in = trajectory.response, trajectory.passages, judge.fill_in
    # Before any call: documents that cannot fit without statements will not fit with them.
    judge.check_fit(ragas.support_prompt(passages, (), fill_in))
    runs = await gather_or_cancel(
        [
            ragas.faithfulness(asker(judge, trajectory, run), question, response, passages, prompt=fill_in)
            for run in judge.runs
        ]
    )
    # Without a value although every reply was read: the response has no statements.
    runs = [replace(run, value=0.0) if run.value is None and run.verdicts and not run.unparsed else run for run in runs]
    return mean_of_runs("ragas_faithfulness", trajectory, runs)


REWARD = Judged(
    title="RAGAS faithfulness",
    version=version_of(ragas.STATEMENTS, ragas.SUPPORT),
    score=score,
    against_documents=True,
    prompts={slot: PROMPTS[slot] for slot in ("statements.user", "support.user")},
)
