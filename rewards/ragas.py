"""Faithfulness and answer relevance after RAGAS, given by the judge: the functions of agents/core/ragas.py.

Of a response (`Trajectory.response`: the reasons for a label, else the answer) against the documents that the system
handed over, and against the text of its question or claim. A score is the mean of the judge's runs that have a value,
null with a reason where none has. 2 and 3 judge calls a run. For faithfulness a run that finds no statement in the
response has 0 (`rewards.faithfulness.without_claims`), where the RAGAS library has no number.

The reasons of "NOT ENOUGH INFO" are noncommittal, so their relevance is 0, as RAGAS has it: where such a label can be
right, weigh relevance lightly or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from agents.core import ragas
from agents.core.ragas import F, Measurement, Reply
from ratchet.records import Question, Score, Trajectory, content_key
from ratchet.tasks import gather_or_cancel
from retrieval.encoders.dense import Embed
from rewards.judge import CallLog, Judge, JudgeRequest
from rewards.prompts import FORM, prompt_set

QUESTIONS = 3
"""The number of questions that are generated for a response."""
RAGAS_FAITHFULNESS_VERSION = content_key(FORM, ragas.STATEMENTS, ragas.SUPPORT)[:12]
ANSWER_RELEVANCE_VERSION = content_key(FORM, ragas.QUESTION, QUESTIONS, "end of the question")[:12]


async def ragas_faithfulness(judge: Judge, question: Question, trajectory: Trajectory, log: CallLog) -> Score:
    """Share of the response's statements that the documents support, from 0 to 1 (Es et al. 2023, arXiv 2309.15217).

    Raises PromptTooLong and JudgeError. The caller handles trajectories with a `rewards.reward.fixed_score`.
    """
    # Before any call: documents that cannot fit without statements will not fit with them.
    prompt = prompt_set(judge.prompts, question).text
    judge.check_fit(ragas.support_prompt(trajectory.passages, (), prompt))
    response, passages = trajectory.response, trajectory.passages
    found = await gather_or_cancel(
        [
            ragas.faithfulness(_asker(judge, trajectory, log, run), question, response, passages, prompt=prompt)
            for run in range(judge.runs)
        ]
    )
    if judge.settings.faithfulness.without_claims == "zero":
        # Without a value although every reply was read: the response has no statements.
        found = [
            replace(run, value=0.0) if run.value is None and run.verdicts and not run.unparsed else run for run in found
        ]
    return _score(trajectory, "ragas_faithfulness", found)


async def answer_relevance(
    judge: Judge,
    embed: Embed,
    question: Question,
    trajectory: Trajectory,
    log: CallLog,
) -> Score:
    """The mean cosine of the question and questions generated from the response (Es et al. 2023, arXiv 2309.15217).

    Raises PromptTooLong and JudgeError; UserError where the embedder is not available.
    """
    prompt = prompt_set(judge.prompts, question).text
    found = await gather_or_cancel(
        [
            ragas.answer_relevance(
                _asker(judge, trajectory, log, run), embed, question, trajectory.response, QUESTIONS, prompt=prompt
            )
            for run in range(judge.runs)
        ]
    )
    return _score(trajectory, "answer_relevance", found)


def _asker(judge: Judge, trajectory: Trajectory, log: CallLog, run: int) -> ragas.Ask:
    async def ask(prompt: str, form: type[F], number: int = 0) -> Reply[F]:
        parts = (form.seed_name, trajectory.key, run, number)
        [verdict] = await judge.ask_all([JudgeRequest(prompt, form, parts)], trajectory.key, log)
        return Reply(verdict.value, verdict.record(run=run))

    return ask


def _score(trajectory: Trajectory, name: str, runs: Sequence[Measurement]) -> Score:
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
