"""Faithfulness: seed paper 002, section 3.2 and algorithm 4.

A run draws the claims of the response, then scores all of them from -1 to 1 against the supporting documents in one
call, as in figure 25; its value is the mean of (s + 1) / 2 over the claims. The score is the mean of the runs. The
documents are those that the system handed over with its answer. A verdict that cannot be read, and a claim that a
readable one leaves unscored, are counted and take no part in a mean.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from ratchet.records import Question, Score, Trajectory
from rewards.judge import Ask, CallLog, Judge
from rewards.prompts import AnswerAspects, Claim, ClaimVerdicts, claims_prompt, support_prompt


async def faithfulness(judge: Judge, question: Question, trajectory: Trajectory, log: CallLog) -> Score:
    """Raises TooLong and JudgeFailed. A failed trajectory is the caller's matter."""

    def null(reason: str, **fields: Any) -> Score:
        return Score(trajectory=trajectory.key, name="faithfulness", value=None, reason=reason, **fields)

    if not trajectory.answer.strip():
        return null("the answer is empty: no claims to check")
    if not trajectory.passages:
        return null("no documents to check the answer against")
    # Before any call: documents that cannot fit without claims will not fit with them.
    judge.check_fit(support_prompt(question, trajectory.passages, ()))

    runs = range(judge.runs)
    drawn = await judge.ask_all(
        [
            Ask(claims_prompt(question, trajectory.answer), AnswerAspects, ("claims", trajectory.key, run))
            for run in runs
        ],
        trajectory.key,
        log,
    )
    verdicts = [reply.record(part="claims", run=run) for run, reply in zip(runs, drawn, strict=True)]
    unparsed = sum(reply.value is None for reply in drawn)
    claims: dict[int, list[Claim]] = {}
    for run, reply in zip(runs, drawn, strict=True):
        if reply.value is not None and reply.value.answer_aspects:
            # Numbered by us: a judge may number two claims alike.
            numbered = enumerate(reply.value.answer_aspects, 1)
            claims[run] = [claim.model_copy(update={"id": number}) for number, claim in numbered]
    if not claims:
        reason = "the judge found no claims in the answer" if unparsed < judge.runs else "no readable list of claims"
        return null(f"{reason} ({unparsed} of {judge.runs} unparsed)", verdicts=tuple(verdicts), unparsed=unparsed)

    replies = await judge.ask_all(
        [
            Ask(
                support_prompt(question, trajectory.passages, claims[run]),
                ClaimVerdicts,
                ("support", trajectory.key, run),
            )
            for run in claims
        ],
        trajectory.key,
        log,
    )
    values: list[float] = []
    for run, checked in zip(claims, replies, strict=True):
        scores = None if checked.value is None else scores_of(claims[run], checked.value)
        verdicts.append(checked.record(part="support", run=run, scores=scores))
        if scores is None:
            unparsed += 1
            continue
        unparsed += scores.count(None)
        readable = [(score + 1) / 2 for score in scores if score is not None]
        if readable:
            values.append(fmean(readable))
    if not values:
        return null(f"no readable verdict on the claims ({unparsed} unparsed)", verdicts=verdicts, unparsed=unparsed)
    return Score(
        trajectory=trajectory.key,
        name="faithfulness",
        value=fmean(values),
        verdicts=tuple(verdicts),
        unparsed=unparsed,
    )


def scores_of(claims: list[Claim], reply: ClaimVerdicts) -> list[int | None]:
    """The score of each claim, None where the reply has none for it or contradicts itself."""
    given: dict[int, set[int]] = {}
    for verdict in reply.scores_list:
        given.setdefault(verdict.id, set()).add(verdict.score)
    return [next(iter(found)) if len(found := given.get(claim.id, set())) == 1 else None for claim in claims]
