"""One question through every round: its trajectories, their rewards, which were kept, the rows they gave, the adapter
that learnt from them and what was decided on it. For a question of an evaluation, what each arm answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rich.markup import escape

from ratchet.core.errors import UserError
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.core.tables import wide_console
from ratchet.core.text import plain_line
from ratchet.evaluation.arms import evaluated_splits, read_arms
from ratchet.rounds.records import read_promotion
from ratchet.sampling.store import TrajectoryStore
from ratchet.training.rows import open_rows

WIDTH = 140
MAX_ANSWER_CHARACTERS = 100
"""Characters of an answer."""


def print_trace(run: RunFolder, question: str, out: TextIO | None = None) -> None:
    """Print one question through every round; UserError where no round has it."""
    console = wide_console(WIDTH, out)
    traced = {folder.path.name: lines for folder in run.rounds() if (lines := list(trace_lines(folder, question)))}
    for name, lines in traced.items():
        console.print(name, style="bold")
        for line in lines:
            console.print(f"  {escape(line)}", soft_wrap=True)
    if not traced:
        raise UserError(f"{run.path}: no round has a trajectory of the question {question!r}")


def print_questions(run: RunFolder) -> None:
    """Print the id of every question that a round sampled, with how many trajectories it has and how many were kept."""
    sampled: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for folder in run.rounds():
        sampled.update(trajectory.question_id for trajectory in TrajectoryStore(folder.trajectories).read())
        if (selection := folder.read_selection()) is not None:
            for choice in selection.choices:
                kept[choice.question_id] += len(choice.kept)
    if not sampled:
        raise UserError(f"{run.path}: no round has sampled a question yet; run `ratchet sample`")
    for question, count in sampled.items():
        print(f"{plain_line(question)}: {count} trajectories, {kept[question]} kept")


def trace_lines(folder: RoundFolder, question: str) -> Iterator[str]:
    """The lines on one round; none where the question was not asked in it."""
    sampled = list(_trajectories_of(TrajectoryStore(folder.trajectories), question))
    rewards: dict[str, float | None] = {}
    kept: tuple[str, ...] = ()
    reason = "nothing was selected yet"
    if selection := folder.read_selection():
        for choice in selection.choices:
            if choice.question_id == question:
                rewards, kept = {**rewards, **choice.rewards}, (*kept, *choice.kept)
                reason = reason if choice.learners else choice.reason
    rows = _rows_per_trajectory(folder.rows) if kept else Counter[str]()
    for trajectory in sorted(sampled, key=lambda t: t.sample):
        reward = rewards.get(trajectory.key)
        fate = "kept" if trajectory.key in kept else "not kept"
        # Objectives other than sft learn from trajectories that were not kept as well.
        fate += f", {rows[trajectory.key]} rows" if trajectory.key in kept or rows[trajectory.key] else ""
        value = "no reward" if reward is None else f"reward {reward:.3f}"
        yield f"{_format_trajectory(trajectory)}  {value}, {fate}"
    if sampled:
        yield f"selection: {reason}"
    answered = False
    for split in evaluated_splits(folder):
        for name, store in read_arms(folder, split).items():
            for trajectory in _trajectories_of(store, question):
                answered = True
                yield f"{name} on {split}: {_format_trajectory(trajectory)}"
    decision = read_promotion(folder)
    if decision and (answered or kept):
        learnt = "learnt from it" if kept else "answered it"
        yield f"adapter {decision.candidate or '(none)'}, which {learnt}: {decision.reason}"


def _format_trajectory(trajectory: Trajectory) -> str:
    answer = " ".join(trajectory.answer.split())
    answer = answer if len(answer) <= MAX_ANSWER_CHARACTERS else f"{answer[:MAX_ANSWER_CHARACTERS]}..."
    sampler = f"the teacher {trajectory.teacher}" if trajectory.teacher else trajectory.policy
    sampler += f", led by {' and '.join(trajectory.explored)}" if trajectory.explored else ""
    why = f" ({' '.join(trajectory.error.split())})" if trajectory.error else ""
    return f"{trajectory.key} sample {trajectory.sample} by {sampler}: {trajectory.status}{why} {answer!r}"


def _trajectories_of(store: TrajectoryStore, question: str) -> Iterator[Trajectory]:
    return (trajectory for trajectory in store.read() if trajectory.question_id == question)


def _rows_per_trajectory(path: Path) -> Counter[str]:
    """Rows of each trajectory."""
    with open_rows(path) as file:
        return Counter(file.read(columns=["trajectory"])["trajectory"].to_pylist() if file else ())
