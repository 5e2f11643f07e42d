"""What counts of a trajectory that gave no answer or did not finish: never more than a wrong answer to its question.

- Without an answer, however it ended: every score is 0, and no judge is asked. An answer in words that the judge calls
  an abstention is an answer, and keeps the scale of its score.
- Ended unparsed or out of budget, with an answer: a score is that of the answer, for whoever looks at answers alone
  (lenient measures, `rewards.select.keep_status`). Rewards and strict measures count the worst: `counted`.
- Failed (a server's or a machine's doing, not the agent's): scores and reward are null, since it is sampled again.
  Strict measures count the worst.

A question that lacks what a score compares with gives null to all of its trajectories, however they ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ratchet.records import Question, Score, Trajectory
from ratchet.text import normalise_answer
from rewards.prompts import expected_output

VERSION = 2
"""Raise it when the score of such a trajectory changes: stored scores of another version are not reused."""


def answered(trajectory: Trajectory) -> bool:
    return bool(trajectory.answer.strip())


def unscorable(name: str, question: Question) -> str:
    """Why no answer to the question can be given this score; empty where one can."""
    if name == "accuracy" and question.label is None:
        return "the question has no label"
    if name in ("em", "f1") and not (question.answers or question.reference):
        return "the question has no answers and no reference"
    if name == "nugget_containment" and not any(map(normalise_answer, question.nuggets)):
        return "the question has no nuggets"
    if name == "correctness" and not (question.nuggets or question.reference):
        return "the question has neither nuggets nor a reference"
    if name == "precision" and not expected_output(question):
        return "the question has no reference, answers or nuggets"
    return ""


def without_looking(name: str, question: Question, trajectory: Trajectory) -> Score | None:
    """The score that follows from the question or the ending alone; None where the answer is to be looked at."""
    value, reason = None, ""
    if trajectory.status == "failed":
        reason = "the trajectory failed"
    elif lacking := unscorable(name, question):
        reason = lacking
    elif not answered(trajectory):
        value, reason = 0.0, "the answer is empty"
    else:
        return None
    return Score(trajectory=trajectory.key, name=name, value=value, reason=reason)


def counted(
    value: float | None,
    names: Iterable[str],
    question: Question,
    trajectory: Trajectory,
    keep_status: Collection[str] = ("finished",),
    worst: float = 0.0,
) -> float | None:
    """`value`, made from the scores `names`, as rewards and strict measures count it.

    The worst where the trajectory has no answer or ended in none of the ways `keep_status`; but None where the
    question cannot be scored.
    """
    if answered(trajectory) and trajectory.status in keep_status:
        return value
    return None if any(unscorable(name, question) for name in names) else worst
