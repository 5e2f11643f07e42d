"""python -m evaluation sweep --config X [cells | cell K/N | merge | test]

Without an action: every cell, the tables, and the test of what dev chose. On many machines: `cell K/N` in N jobs
(every N-th cell from K on, counted from 0), then `merge`, then `test`.

    cells      the cells that choose, one a line, each with its state: done, part or missing
    cell K/N   run some of them; what is on disk is not run again
    merge      sweep.json, sweep.csv and sweep.html in the run folder's sweep/, without a model; exit status 1 where
               cells are missing, which are named
    test       measure what dev chose, and what it is compared with, on the test sets: once

Where a GPU has no room for agents and judge at once, `cell` and `test` sample first and score after that:

    python -m inference serve --config X --models agent -- python -m evaluation sweep --config X cell 0/1 --phase sample
    python -m inference serve --config X --models judge -- python -m evaluation sweep --config X cell 0/1 --phase score
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from evaluation.sweep.cells import Sweep, plan_sweep
from evaluation.sweep.choice import enter_looks, test_record
from evaluation.sweep.merge import choices_of, merge, tested_cells
from evaluation.sweep.page import render
from evaluation.sweep.records import SweepResults
from evaluation.sweep.run import run_cells
from evaluation.sweep.spreadsheet import as_csv
from evaluation.sweep.table import print_sweep
from ratchet.command import Phase, add_config_arguments, add_phase_argument, config_of, part_of_work
from ratchet.errors import UserError
from ratchet.files import write_atomic
from ratchet.runfolder import open_run


def sweep(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", nargs="?", choices=("all", "cells", "cell", "merge", "test"), default="all")
    parser.add_argument("part", nargs="?", type=part_of_work, metavar="K/N", help="cell: which part of the cells")
    add_config_arguments(parser)
    add_phase_argument(parser)
    parser.add_argument("--again", action="store_true", help="test: look at the test sets with another choice")
    options = parser.parse_intermixed_args(arguments)
    if (options.part is not None) != (options.action == "cell"):
        parser.error("cell takes a part K/N, such as 0/4; the other actions take none")
    if options.phase != "all" and options.action not in ("cell", "test"):
        parser.error("--phase belongs to cell and test: tables need scores")
    if options.again and options.action not in ("test", "all"):
        parser.error("--again belongs to test")
    config = config_of(options)
    if config.members:
        raise UserError("this config's tasks are its members'; sweep each of them")
    plan = plan_sweep(config)
    if options.action == "cells":
        for cell in plan.cells():
            seen = plan.look(cell)
            print(f"{cell.name}\t{seen.state}" + (f"\t{seen.note}" if seen.note else ""))
        return
    open_run(config)
    if options.action == "cell":
        part, parts = options.part
        run_cells(plan, plan.cells()[part::parts], options.phase)
        return
    if options.action == "all":
        run_cells(plan, plan.cells())
        if plan.test and not _blocked(plan):
            _finish(plan, quiet=True)  # a test that is refused leaves the dev tables behind
            _test(plan, options.again)
    elif options.action == "test":
        if not plan.test:
            raise UserError("sweep.test: no question set is left to test on; name one that is not under dev")
        if blocked := _blocked(plan):
            raise UserError("the test is for what dev has chosen:\n  " + "\n  ".join(blocked))
        _test(plan, options.again, options.phase)
        if options.phase == "sample":
            return
    _finish(plan)


def _blocked(plan: Sweep) -> list[str]:
    """Why nothing can be tested yet."""
    return choices_of(plan)[1]


def _test(plan: Sweep, again: bool, phase: Phase = "all") -> None:
    enter_looks(plan, choices_of(plan)[0], again)
    run_cells(plan, tested_cells(plan, test_record(plan.folder)), phase)


def _finish(plan: Sweep, quiet: bool = False) -> None:
    """Merge, write, print; exit status 1 where cells are missing."""
    results = merge(plan)
    write_sweep(plan, results)
    if quiet:
        return
    print_sweep(results)
    print("written to " + ", ".join(str(plan.folder / f"sweep.{kind}") for kind in ("json", "csv", "html")))
    if results.missing:
        sys.exit(1)


def write_sweep(plan: Sweep, results: SweepResults) -> None:
    write_atomic(plan.folder / "sweep.json", results.model_dump_json(indent=1) + "\n")
    write_atomic(plan.folder / "sweep.csv", as_csv(results))
    write_atomic(plan.folder / "sweep.html", render(results).encode("utf-8", "replace"))
