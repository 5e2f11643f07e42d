"""Faithfulness and precision: the claims of a response, checked by the judge.

A run extracts the claims of the response (Salemi et al. 2025, arXiv 2506.10844, figure 24), then has all of them scored
from -1 to 1 in one call (figure 25). Its value, from 0 to 1, is the mean of (s + 1) / 2 over the claims, and 0 where
the answer makes none, as algorithm 4 starts at 0; the score is the mean of the runs. A verdict that cannot be read, and
a claim whose score cannot, are counted and take no part in a mean. A verdict that does not number exactly the claims
cannot be read (`agents.core.numbering`). `rewards.faithfulness` has other readings, and may have the claims of the
first run serve all runs.

- Faithfulness (section 3.2 and algorithm 4 of the paper) checks the claims against the documents that the system
  returned with its answer. It takes 2 judge calls a run, and none where there are no documents: no claim of such an
  answer is supported, so it has 0 (or null, `rewards.faithfulness.without_documents`).
- Precision checks them against the reference (or the short answers joined, or the nuggets), so that length alone does
  not win: nugget correctness is a recall, which longer answers raise (the paper reports as much). It is ours.
  `correctness_f1` in `evaluation.measures.measures` is the harmonic mean of the two. It takes 1 judge call a run where
  the same trajectory has a faithfulness score, whose claims are reused, else 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Literal

from agents.core.numbering import rebase
from ratchet.records import Question, Score, Trajectory
from rewards.judge import CallLog, Judge, JudgeRequest, Verdict, read_reply
from rewards.prompts import (
    AnswerAspects,
    Claim,
    ClaimVerdicts,
    claims_prompt,
    expected_output,
    expected_prompt,
    support_prompt,
)


async def faithfulness(judge: Judge, question: Question, trajectory: Trajectory, log: CallLog) -> Score:
    """The mean of (s + 1) / 2 over the claims against the documents. Raises PromptTooLong and JudgeError.

    The caller handles trajectories with a `rewards.reward.fixed_score`.
    """
    null = Score(trajectory=trajectory.key, name="faithfulness", value=None)
    settings = judge.settings.faithfulness
    if not trajectory.passages:
        value = 0.0 if settings.without_documents == "zero" else None
        reason = "no documents to check the answer against"
        return Score(trajectory=trajectory.key, name="faithfulness", value=value, reason=reason)
    # Before any call: documents that cannot fit without claims will not fit with them.
    judge.check_fit(support_prompt(question, trajectory.passages, (), judge.prompts))
    return await _score_claims(
        judge,
        null,
        question,
        trajectory,
        lambda claims: support_prompt(question, trajectory.passages, claims, judge.prompts),
        log,
        neutral=settings.omitted_claims == "neutral",
    )


async def precision(
    judge: Judge, question: Question, trajectory: Trajectory, log: CallLog, faithfulness: Score | None = None
) -> Score:
    """The mean of (s + 1) / 2 over the claims against the reference. Raises PromptTooLong and JudgeError.

    `faithfulness` is the trajectory's score under the same judge settings, if there is one. The caller handles
    trajectories with a `rewards.reward.fixed_score`.
    """
    null = Score(trajectory=trajectory.key, name="precision", value=None)
    expected = expected_output(question)
    judge.check_fit(expected_prompt(question, expected, (), judge.prompts))
    return await _score_claims(
        judge,
        null,
        question,
        trajectory,
        lambda claims: expected_prompt(question, expected, claims, judge.prompts),
        log,
        _stored_claims(faithfulness, judge),
    )


async def _score_claims(
    judge: Judge,
    null: Score,
    question: Question,
    trajectory: Trajectory,
    check: Callable[[Sequence[Claim]], str],
    log: CallLog,
    extracted: Sequence[Verdict[AnswerAspects]] = (),
    neutral: bool = False,
) -> Score:
    """`null` with its value. `check` makes the prompt that has claims scored; `extracted` are the runs' claims if they
    are known; `neutral`: a claim that a readable reply leaves out, or whose score in it cannot be read, has 0."""
    runs = range(judge.runs)
    extracted = extracted or await _extract_claims(judge, question, trajectory, log)
    verdicts = [reply.record(part="claims", run=run) for run, reply in zip(runs, extracted, strict=True)]
    unparsed = sum(reply.value is None for reply in extracted)
    claims: dict[int, list[Claim]] = {}
    values: list[float] = []
    for run, reply in zip(runs, extracted, strict=True):
        if reply.value is None:
            continue
        if reply.value.answer_aspects:
            # Numbered by us: a judge may number two claims alike.
            numbered = enumerate(reply.value.answer_aspects, 1)
            claims[run] = [claim.model_copy(update={"id": number}) for number, claim in numbered]
        elif judge.settings.faithfulness.without_claims == "zero":
            values.append(0.0)
            verdicts.append({"part": "support", "run": run, "scores": []})

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
        return filled(0.0 if values else None, f"{reason} ({unparsed} of {judge.runs} unparsed)")

    replies = await judge.ask_all(
        [JudgeRequest(check(claims[run]), ClaimVerdicts, ("support", trajectory.key, run)) for run in claims],
        trajectory.key,
        log,
    )
    for run, checked in zip(claims, replies, strict=True):
        scores = None if checked.value is None else claim_scores(claims[run], checked.value, neutral)
        verdicts.append(checked.record(part="support", run=run, scores=scores))
        if scores is None:
            unparsed += 1
            continue
        unparsed += scores.count(None)
        counted = [0 if score is None and neutral else score for score in scores]
        readable = [(score + 1) / 2 for score in counted if score is not None]
        if readable:
            values.append(fmean(readable))
    if not values:
        return filled(None, f"no readable verdict on the claims ({unparsed} unparsed)")
    return filled(fmean(values))


async def _extract_claims(
    judge: Judge, question: Question, trajectory: Trajectory, log: CallLog
) -> list[Verdict[AnswerAspects]]:
    """The claims of every run; the same ones for all where they are drawn once."""
    settings = judge.settings.faithfulness
    drawn = judge.runs if settings.claims == "per_run" else 1
    prompt = claims_prompt(question, trajectory.answer, judge.prompts)
    found = await judge.ask_all(
        [
            JudgeRequest(prompt, AnswerAspects, ("claims", trajectory.key, run), settings.claim_temperature)
            for run in range(drawn)
        ],
        trajectory.key,
        log,
    )
    return found * (judge.runs // drawn)


def _stored_claims(score: Score | None, judge: Judge) -> list[Verdict[AnswerAspects]]:
    """The claims behind another score of the same trajectory, one reply a run; empty where it has none."""
    replies = [verdict for verdict in (score.verdicts if score else ()) if verdict["part"] == "claims"]
    if len(replies) != judge.runs:
        return []
    return [
        Verdict(
            r["text"],
            r["finish_reason"],
            read_reply(r["text"], AnswerAspects, judge.settings.parsing),
            r.get("asked_again", False),
        )
        for r in replies
    ]


def claim_scores(
    claims: Sequence[Claim], reply: ClaimVerdicts, may_omit: bool = False
) -> list[Literal[-1, 0, 1] | None] | None:
    """The score of each claim, None where it cannot be read or is contradicted; None where the reply's ids do not tell
    which claims it scores. `may_omit`: the reply may leave claims out."""
    expected, ids = [claim.id for claim in claims], [verdict.id for verdict in reply.scores_list]
    numbers = ids if may_omit and set(ids) <= set(expected) else rebase(ids, expected)
    if numbers is None:
        return None
    given: dict[int, set[Literal[-1, 0, 1] | None]] = {}
    for number, verdict in zip(numbers, reply.scores_list, strict=True):
        given.setdefault(number, set()).add(verdict.score)
    return [next(iter(found)) if len(found := given.get(number, set())) == 1 else None for number in expected]
