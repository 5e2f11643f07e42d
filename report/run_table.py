"""A run's trajectories and scores as one table: `from ratchet import read_run`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ratchet.core.errors import UserError
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.questions.manifest import check_version
from ratchet.rewards.store import stored_scores
from ratchet.sampling.store import TrajectoryStore

COLUMNS = {
    "round": pa.int64(),
    "trajectory": pa.string(),
    "question": pa.string(),
    "sample": pa.int64(),
    "system": pa.string(),
    "policy": pa.string(),
    "teacher": pa.string(),
    "explored": pa.string(),
    "learners": pa.string(),
    "status": pa.string(),
    "answer": pa.string(),
    "error": pa.string(),
    "model_calls": pa.int64(),
    "tool_calls": pa.int64(),
    "prompt_tokens": pa.int64(),
    "new_tokens": pa.int64(),
    "seconds": pa.float64(),
    "reward": pa.float64(),
    "kept": pa.bool_(),
}
"""`trajectory` is its key, `question` the question's id; `reward` and `kept` are null before selection. `explored`
names the rules that led it, and `learners` the roles of a curriculum. One column for each score follows, null where it
was not computed or has no value, and one for each role of a score with values by role ("hops of searcher")."""


def read_run(run: str | Path, round: int | None = None) -> pa.Table:
    """The sampled trajectories of a run, one a row, with their scores and whether training keeps them.

    `run`: a run folder. `round`: this one alone; default: all. UserError where there is none.
    """
    folder = RunFolder(Path(run))
    check_version(folder)
    rounds = [each for each in folder.rounds() if round in (None, each.number)]
    if not rounds:
        which = "round" if round is None else f"round {round}"
        raise UserError(f"{folder.path}: no {which} is in this run folder; sample one with `ratchet sample`")
    rows = [row for each in rounds for row in _rows(each)]
    scores = sorted({name for row in rows for name in row} - COLUMNS.keys())
    schema = pa.schema([*COLUMNS.items(), *((name, pa.float64()) for name in scores)])
    return pa.Table.from_pylist(rows, schema)


def _rows(folder: RoundFolder) -> Iterator[dict[str, Any]]:
    rows = {trajectory.key: trajectory_row(trajectory) for trajectory in TrajectoryStore(folder.trajectories).read()}
    for (key, name), score in stored_scores(folder.scores, rows.keys()).items():
        rows[key][name] = score.value
        rows[key] |= {f"{name} of {role}": value for role, value in score.roles.items()}
    if (selection := folder.read_selection()) is not None:
        kept = set(selection.kept)
        for choice in selection.choices:
            for key, reward in choice.rewards.items():
                if key in rows:
                    rows[key] |= {"reward": reward, "kept": key in kept}
    for row in rows.values():
        yield {"round": folder.number, **row}


def trajectory_row(trajectory: Trajectory) -> dict[str, Any]:
    """The columns of the trajectory itself: all of COLUMNS but the round, the reward and whether it is kept."""
    calls = trajectory.model_calls
    return {
        "trajectory": trajectory.key,
        "question": trajectory.question_id,
        "sample": trajectory.sample,
        "system": trajectory.system,
        "policy": trajectory.policy,
        "teacher": trajectory.teacher,
        "explored": ", ".join(trajectory.explored),
        "learners": ", ".join(trajectory.learners),
        "status": trajectory.status,
        "answer": trajectory.answer,
        "error": trajectory.error,
        "model_calls": len(calls),
        "tool_calls": len(trajectory.tool_calls),
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "new_tokens": sum(call.new_tokens for call in calls),
        "seconds": trajectory.seconds,
    }
