"""`ratchet sweep`: evaluate many checkpoints and systems."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import write_record
from ratchet.evaluation.arms import check_leaks, open_scoring, sample_arms
from ratchet.evaluation.sweep import Cell, Sweep, plan_sweep
from ratchet.evaluation.sweep_results import (
    SweepChoice,
    SweepResults,
    merge,
    print_sweep,
    read_test_record,
    record_evaluations,
    tested_cells,
)
from ratchet.questions.manifest import open_run


def sweep(config: Config, options: argparse.Namespace) -> None:
    """Run every cell, write the tables, and test what dev chose."""
    plan = _plan(config)
    run_cells(plan, plan.cells())
    results = _write(plan)  # the dev tables are written even where the test is refused
    if plan.test and not results.undecided:
        _test(plan, results.choices, options.again)
        results = _write(plan)
    _show(plan, results, options)


def cell(config: Config, options: argparse.Namespace) -> None:
    """Run some of the cells; finished ones are not run again."""
    plan = _plan(config)
    part, parts = options.part
    run_cells(plan, plan.cells()[part::parts], options.phase)


def merge_cells(config: Config, options: argparse.Namespace) -> None:
    """Write sweep.json in the run folder's sweep/, without a model, and name the cells that are missing."""
    plan = _plan(config)
    _show(plan, _write(plan), options)


def test(config: Config, options: argparse.Namespace) -> None:
    """Measure what dev chose, and its base, on the test sets, once."""
    plan = _plan(config)
    if not plan.test:
        why = "sweep.grid chooses no checkpoint" if plan.is_grid else "no question set is left to test on"
        raise UserError(f"sweep.test: {why}; name one that is not under dev")
    results = merge(plan)
    if results.undecided:
        raise UserError("no checkpoint is chosen on dev yet for these systems:\n  " + "\n  ".join(results.undecided))
    _test(plan, results.choices, options.again, options.phase)
    if options.phase != "sample":
        _show(plan, _write(plan), options)


def _plan(config: Config) -> Sweep:
    if config.members:
        raise UserError("the config has `members`; sweep each member with its own config")
    plan = plan_sweep(config)
    open_run(config, [asked.name for asked in (*plan.dev, *plan.test)])
    return plan


def _test(plan: Sweep, choices: Sequence[SweepChoice], again: bool, phase: str = "all") -> None:
    record_evaluations(plan, choices, again)
    run_cells(plan, tested_cells(plan, read_test_record(plan.folder)), phase)


def run_cells(sweep: Sweep, cells: Sequence[Cell], phase: str = "all") -> None:
    """Sample and score what is missing of the cells; where nothing is, no model is opened. Raises UserError in the
    phase "score" where a cell was not sampled completely."""
    statuses = {cell.name: sweep.status(cell) for cell in cells}
    unfinished = [cell.arm for cell in cells if statuses[cell.name].state != "done" or statuses[cell.name].failed]
    unsampled = [arm for arm in unfinished if not statuses[arm.name].trajectories or statuses[arm.name].failed]
    if phase == "score":
        if missing := [arm.name for arm in unsampled if not statuses[arm.name].trajectories]:
            raise UserError(f"{', '.join(missing)}: not sampled yet; run the same command with --phase sample first")
        unsampled = []
    check_leaks(sweep.config.questions.leakage, unsampled)
    if unsampled:
        sample_arms(sweep.config, unsampled, f"sweep, {len(unsampled)} cell(s)")
    if phase == "sample":
        return
    with open_scoring(sweep.config) as score_arm:
        for number, arm in enumerate(unfinished, 1):
            print(f"score {number}/{len(unfinished)}: {arm.name}", file=sys.stderr)
            score_arm(arm)


def _write(plan: Sweep) -> SweepResults:
    results = merge(plan)
    write_record(plan.folder / "sweep.json", results)
    return results


def _show(plan: Sweep, results: SweepResults, options: argparse.Namespace) -> None:
    print_sweep(results, all_measures=options.all_measures)
    print(f"written to {plan.folder / 'sweep.json'}")
    if results.missing:
        sys.exit(1)
