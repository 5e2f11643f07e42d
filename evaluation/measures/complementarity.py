"""The complementarity of the candidate answers that a system chooses between (AwE, section 4.5).

It counts, by exact match or label, how often all candidates are right, only some, or none, and how often the final
answer then is.

For any system that keeps its candidates (`Trajectory.candidates`). A question counts once: its trajectories share its
weight, so counts may be fractions. Strict: a candidate that a trajectory lacks because it did not finish is not right.
Questions without a reference, and finished trajectories without every candidate, which had nothing to choose between,
are skipped and counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from rich.table import Table

from ratchet.core.records import Question, Trajectory
from ratchet.core.tables import new_table
from ratchet.core.text import Normalise, normalise_answer
from ratchet.rewards.reward import strict_value
from ratchet.rewards.rules import is_right


@dataclass(frozen=True)
class CorrectSubset:
    """The questions on which exactly these candidates were right."""

    right: tuple[str, ...]
    questions: float
    share: float
    final: float | None
    """Exact match (strict) of the system's final answer on these questions; None where there are none."""


@dataclass(frozen=True)
class Complementarity:
    """The right candidate answers of a system and its final answers, over questions."""

    names: tuple[str, ...]
    outcomes: tuple[CorrectSubset, ...]
    """All right first, none right last; with more than three candidates only the sets that occurred."""
    questions: int
    left_out: int
    """Trajectories that were skipped."""
    final: float
    """Exact match of the final answer, 0 to 1."""

    @property
    def any_right(self) -> float:
        """Exact match of a system that always chooses a right candidate."""
        return sum(outcome.share for outcome in self.outcomes if outcome.right)

    def alone(self, name: str) -> float:
        return sum(outcome.share for outcome in self.outcomes if name in outcome.right)


def complementarity(
    questions: Iterable[Question], trajectories: Iterable[Trajectory], normalise: Normalise = normalise_answer
) -> Complementarity | None:
    """Compare the candidates of all trajectories; None where there are fewer than two or no usable question."""
    known = {question.id: question for question in questions}
    everything = list(trajectories)
    names = tuple(dict.fromkeys(name for trajectory in everything for name in trajectory.candidates))
    usable: dict[str, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
    for trajectory in everything:
        question = known.get(trajectory.question_id)
        if question is None or is_right("", question) is None:
            continue
        if trajectory.status != "finished" or set(trajectory.candidates) == set(names):
            answers = trajectory.candidates
            right = tuple(
                name for name in names if answers.get(name, "").strip() and is_right(answers[name], question, normalise)
            )
            final = strict_value(is_right(trajectory.answer, question, normalise), (), question, trajectory)
            usable[trajectory.question_id].append((right, final or 0.0))
    if len(names) < 2 or not usable:
        return None
    # Of few candidates every set is an outcome, also one that did not occur.
    every = [right for size in range(len(names) + 1) for right in combinations(names, size)] if len(names) <= 3 else []
    weights: dict[tuple[str, ...], float] = dict.fromkeys(every, 0.0)
    finals: dict[tuple[str, ...], float] = defaultdict(float)
    for samples in usable.values():
        for right, final in samples:
            weights[right] = weights.get(right, 0.0) + 1 / len(samples)
            finals[right] += final / len(samples)
    order = sorted(weights, key=lambda right: (-len(right), [names.index(name) for name in right]))
    return Complementarity(
        names=names,
        outcomes=tuple(
            CorrectSubset(
                right,
                weights[right],
                weights[right] / len(usable),
                finals[right] / weights[right] if weights[right] else None,
            )
            for right in order
        ),
        questions=len(usable),
        left_out=len(everything) - sum(len(samples) for samples in usable.values()),
        final=sum(finals.values()) / len(usable),
    )


def complementarity_table(measured: Complementarity, title: str = "Complementarity of the candidates") -> Table:
    """One row per set of candidates that were right together, then each candidate alone."""
    left_out = f"; {measured.left_out} trajectories skipped" if measured.left_out else ""
    caption = f"right answers on {measured.questions} questions{left_out}"
    table = new_table(title, ("right",), ("questions", "share", "final answer right"), caption)
    for outcome in measured.outcomes:
        name, final = _label(outcome.right, measured.names), outcome.final
        right = "-" if final is None else f"{final:.3f}"
        table.add_row(name, f"{round(outcome.questions, 2):g}", f"{outcome.share:.3f}", right)
    table.add_section()
    for name in measured.names:
        table.add_row(f"{name} alone", "", f"{measured.alone(name):.3f}", "")
    table.add_row("any candidate", "", f"{measured.any_right:.3f}", f"{measured.final:.3f}")
    return table


def _label(right: tuple[str, ...], names: tuple[str, ...]) -> str:
    if not right:
        return "neither" if len(names) == 2 else "none"
    if len(right) == len(names):
        return "both" if len(names) == 2 else "all"
    return f"only {' and '.join(right)}"
