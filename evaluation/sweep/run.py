"""Running cells: one pool over all that is missing, then the scores, cell by cell."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from evaluation.sweep.cells import Cell, CellRecord, Sweep
from questions.guard import check_adapter
from ratchet.command import Phase
from ratchet.errors import UserError
from ratchet.files import write_json
from sampling.pool import Pass, sample
from sampling.store import TrajectoryStore


def run_cells(sweep: Sweep, cells: Sequence[Cell], phase: Phase = "all") -> None:
    """Finish the cells. What is on disk is not done again, and where nothing is missing no model is opened.

    Raises UserError in the phase "score" where a cell was not sampled to its end.
    """
    seen = {cell.name: sweep.look(cell) for cell in cells}
    unfinished = [cell for cell in cells if seen[cell.name].state != "done" or seen[cell.name].failed]
    unsampled = [cell for cell in unfinished if not seen[cell.name].trajectories or seen[cell.name].failed]
    if phase == "score":
        if missing := [cell.name for cell in unsampled if not seen[cell.name].trajectories]:
            raise UserError(f"{', '.join(missing)}: not sampled yet; run the same command with --phase sample first")
        unsampled = []
    _check_leaks(sweep, unsampled)
    place = {checkpoint.name: i for i, checkpoint in enumerate(sweep.checkpoints)}
    passes = [
        Pass(
            cell.system,
            sweep.setting(cell),
            cell.asked.questions,
            sweep.config.evaluation.samples,
            cell.folder,
            group=place[cell.checkpoint.name],
        )
        for cell in unsampled
    ]
    if passes:
        title = f"sweep, {len(passes)} cell(s)"
        for cell, keys in zip(unsampled, sample(sweep.config, passes, title), strict=True):
            record = CellRecord(plan=sweep.plan_of(cell), keys=tuple(keys))
            write_json(cell.record, record.model_dump(mode="json"))
    if phase != "sample":
        for number, cell in enumerate(unfinished, 1):
            print(f"score {number}/{len(unfinished)}: {cell.name}", file=sys.stderr)
            _score(sweep, cell)


def _score(sweep: Sweep, cell: Cell) -> None:
    from rewards.scoring import score_trajectories  # late: tables need no judge

    record = CellRecord.model_validate_json(cell.record.read_bytes())
    trajectories = TrajectoryStore(cell.folder).load(record.keys)
    names = sweep.config.evaluation.scores
    score_trajectories(sweep.config, cell.asked.questions, trajectories, names, cell.scores)


def _check_leaks(sweep: Sweep, cells: Sequence[Cell]) -> None:
    """Every checkpoint against every question set, once."""
    said: set[str] = set()
    for cell in cells:
        folder = cell.checkpoint.leak_checked
        if folder is None:
            continue
        strict = cell.asked.name not in ("train", "dev")
        modes = sweep.config.questions.leakage
        for warning in check_adapter(folder, cell.asked.questions, modes, cell.asked.name, strict):
            if warning not in said:
                print(warning, file=sys.stderr)
                said.add(warning)
