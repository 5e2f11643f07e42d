"""Running cells: one pool over all that is missing, then the scores, cell by cell."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from evaluation.arms import arm_trajectories, check_leaks, open_scoring, sample_arms
from evaluation.sweep.cells import Cell, Sweep
from ratchet.command import Phase
from ratchet.errors import UserError


def run_cells(sweep: Sweep, cells: Sequence[Cell], phase: Phase = "all") -> None:
    """Finish the cells. What is on disk is not done again, and where nothing is missing no model is opened.

    Raises UserError in the phase "score" where a cell was not sampled to its end.
    """
    seen = {cell.name: sweep.look(cell) for cell in cells}
    unfinished = [cell.arm for cell in cells if seen[cell.name].state != "done" or seen[cell.name].failed]
    unsampled = [arm for arm in unfinished if not seen[arm.name].trajectories or seen[arm.name].failed]
    if phase == "score":
        if missing := [arm.name for arm in unsampled if not seen[arm.name].trajectories]:
            raise UserError(f"{', '.join(missing)}: not sampled yet; run the same command with --phase sample first")
        unsampled = []
    check_leaks(sweep.config, unsampled)
    if unsampled:
        sample_arms(sweep.config, unsampled, f"sweep, {len(unsampled)} cell(s)")
    if phase == "sample":
        return
    with open_scoring(sweep.config) as score_arm:
        for number, arm in enumerate(unfinished, 1):
            print(f"score {number}/{len(unfinished)}: {arm.name}", file=sys.stderr)
            score_arm(arm, arm_trajectories(arm.store))
