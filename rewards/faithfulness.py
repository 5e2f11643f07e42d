"""Faithfulness: seed paper 002, section 3.2 and algorithm 4.

The claims of the response against the supporting documents, by the machinery of `rewards.claims`. The documents are
those that the system handed over with its answer. 2 judge calls a run.
"""

from __future__ import annotations

from ratchet.records import Question, Score, Trajectory
from rewards.claims import score_claims
from rewards.judge import CallLog, Judge
from rewards.prompts import support_prompt


async def faithfulness(judge: Judge, question: Question, trajectory: Trajectory, log: CallLog) -> Score:
    """Raises TooLong and JudgeFailed. What needs no look at the answer is the caller's matter (`rewards.endings`)."""
    null = Score(trajectory=trajectory.key, name="faithfulness", value=None)
    if not trajectory.passages:
        return null.model_copy(update={"reason": "no documents to check the answer against"})
    # Before any call: documents that cannot fit without claims will not fit with them.
    judge.check_fit(support_prompt(question, trajectory.passages, ()))
    return await score_claims(
        judge, null, question, trajectory, lambda claims: support_prompt(question, trajectory.passages, claims), log
    )
