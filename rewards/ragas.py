"""What the judged rewards after RAGAS have in common: the functions of agents/core/ragas.py, asked for every run.

They look at the response (`Trajectory.response`: the reasons for a label, else the answer). A score is the mean of the
judge's runs that have a value, null with a reason where none has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from agents.core import ragas
from agents.core.prompts.template import Prompts
from agents.core.ragas import Ask, F, Measurement
from agents.core.ragas import Reply as RagasReply
from ratchet.records import Score, Trajectory
from rewards.inputs import ScoreJudge
from rewards.judge import JudgeRequest

PROMPTS: Prompts = {slot: replace(prompt, note=f"RAGAS {prompt.note}") for slot, prompt in ragas.PROMPTS.items()}


def asker(judge: ScoreJudge, trajectory: Trajectory, run: int) -> Ask:
    """Asks the judge in one of its runs."""

    async def ask(prompt: str, form: type[F], number: int = 0) -> RagasReply[F]:
        parts = (form.seed_name, trajectory.key, run, number)
        [verdict] = await judge.ask_all([JudgeRequest(prompt, form, parts)])
        return RagasReply(verdict.value, verdict.record(run=run))

    return ask


def mean_of_runs(name: str, trajectory: Trajectory, runs: Sequence[Measurement]) -> Score:
    """The score `name` of a trajectory, from the measurements of the judge's runs."""
    values = [run.value for run in runs if run.value is not None]
    reasons = dict.fromkeys(run.reason for run in runs)
    return Score(
        trajectory=trajectory.key,
        name=name,
        value=fmean(values) if values else None,
        reason="" if values else "; ".join(reasons),
        verdicts=tuple(verdict for run in runs for verdict in run.verdicts),
        unparsed=sum(run.unparsed for run in runs),
    )
