"""The claims of a response, checked by the judge: what faithfulness and precision have in common.

A run draws the claims of the response (figure 24 of seed paper 002), then has all of them scored from -1 to 1 in one
call (figure 25); its value is the mean of (s + 1) / 2 over the claims. The score is the mean of the runs. A verdict
that cannot be read, and a claim that a readable one leaves unscored, are counted and take no part in a mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from ratchet.records import Question, Score, Trajectory
from rewards.judge import Ask, CallLog, Judge, Verdict, read_reply
from rewards.prompts import AnswerAspects, Claim, ClaimVerdicts, claims_prompt


async def score_claims(
    judge: Judge,
    null: Score,
    question: Question,
    trajectory: Trajectory,
    check: Callable[[Sequence[Claim]], str],
    log: CallLog,
    drawn: Sequence[Verdict[AnswerAspects]] = (),
) -> Score:
    """`null` filled in. `check` is the prompt that has claims scored; `drawn` are the runs' claims if they are known.

    Raises TooLong and JudgeFailed.
    """
    runs = range(judge.runs)
    drawn = drawn or await judge.ask_all(
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

    def filled(value: float | None, reason: str = "") -> Score:
        return Score(
            trajectory=null.trajectory,
            name=null.name,
            value=value,
            reason=reason,
            verdicts=tuple(verdicts),
            unparsed=unparsed,
        )

    if not claims:
        reason = "the judge found no claims in the answer" if unparsed < judge.runs else "no readable list of claims"
        return filled(None, f"{reason} ({unparsed} of {judge.runs} unparsed)")

    replies = await judge.ask_all(
        [Ask(check(claims[run]), ClaimVerdicts, ("support", trajectory.key, run)) for run in claims],
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
        return filled(None, f"no readable verdict on the claims ({unparsed} unparsed)")
    return filled(fmean(values))


def drawn_claims(score: Score | None, runs: int) -> list[Verdict[AnswerAspects]]:
    """The claims behind another score of the same trajectory, one reply a run; empty where it drew none."""
    replies = [verdict for verdict in (score.verdicts if score else ()) if verdict["part"] == "claims"]
    if len(replies) != runs:
        return []
    return [Verdict(r["text"], r["finish_reason"], read_reply(r["text"], AnswerAspects)) for r in replies]


def scores_of(claims: list[Claim], reply: ClaimVerdicts) -> list[int | None]:
    """The score of each claim, None where the reply has none for it or contradicts itself."""
    given: dict[int, set[int]] = {}
    for verdict in reply.scores_list:
        given.setdefault(verdict.id, set()).add(verdict.score)
    return [next(iter(found)) if len(found := given.get(claim.id, set())) == 1 else None for claim in claims]
