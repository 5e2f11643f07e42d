"""Precision: the claims of the response against the reference answer, so that length alone does not win.

Ours, not of a paper: nugget correctness is a recall, which longer answers raise (seed paper 002 reports as much). The
claims and the scale are those of faithfulness, with the reference (or the short answers joined, or the nuggets) in
place of the documents: mean of (s + 1) / 2. `correctness_f1` in `evaluation.measures.measures` joins the two.

Cost: 1 judge call a run where faithfulness was judged of the same trajectory, whose claims are then taken over;
2 calls a run where it was not.
"""

from __future__ import annotations

from ratchet.records import Question, Score, Trajectory
from rewards.claims import drawn_claims, score_claims
from rewards.judge import CallLog, Judge
from rewards.prompts import expected_output, expected_prompt


async def precision(
    judge: Judge, question: Question, trajectory: Trajectory, log: CallLog, faithfulness: Score | None = None
) -> Score:
    """`faithfulness` is the trajectory's score under the same judge settings, if there is one.

    Raises TooLong and JudgeFailed. What needs no look at the answer is the caller's matter (`rewards.endings`).
    """
    null = Score(trajectory=trajectory.key, name="precision", value=None)
    expected = expected_output(question)
    judge.check_fit(expected_prompt(question, expected, ()))
    return await score_claims(
        judge,
        null,
        question,
        trajectory,
        lambda claims: expected_prompt(question, expected, claims),
        log,
        drawn_claims(faithfulness, judge.runs),
    )
