"""python -m evaluation sweep --config X [cells | cell K/N | merge | test]: evaluate many checkpoints and systems."""

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
from ratchet.command import Phase, add_phase_argument, config_of, config_parser, part_of_work
from ratchet.errors import UserError
from ratchet.files import write_atomic
from ratchet.runfolder import open_run
from ratchet.subcommands import Subcommand, run_subcommand

ABOUT = """Without a command: every cell, the tables, and the test of what dev chose. On many machines: `cell K/N` in N
jobs, then `merge`, then `test`. What is on disk is not run again."""

TWO_PHASES = """Where a GPU has no room for agents and judge at once, sample first and score after that:

    python -m inference serve --config X --models agent -- python -m evaluation sweep --config X cell 0/1 --phase sample
    python -m inference serve --config X --models judge -- python -m evaluation sweep --config X cell 0/1 --phase score
"""


def sweep(words: Sequence[str], prog: str = "python -m evaluation sweep") -> None:
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT, otherwise=run_all)


def run_all(words: Sequence[str], prog: str) -> None:
    parser = config_parser(prog, ABOUT)
    _add_again(parser)
    options = parser.parse_args(words)
    plan = _open(options)
    run_cells(plan, plan.cells())
    if plan.test and not _blocked(plan):
        _finish(plan, quiet=True)  # a test that is refused leaves the dev tables behind
        _test(plan, options.again)
    _finish(plan)


def cells(words: Sequence[str], prog: str) -> None:
    parser = config_parser(prog, "List the cells that choose, each with its state: done, part or missing.")
    plan = _plan(parser.parse_args(words))
    for cell in plan.cells():
        seen = plan.look(cell)
        print(f"{cell.name}\t{seen.state}" + (f"\t{seen.note}" if seen.note else ""))


def cell(words: Sequence[str], prog: str) -> None:
    parser = config_parser(prog, f"Run some of the cells; what is on disk is not run again.\n\n{TWO_PHASES}")
    parser.add_argument("part", type=part_of_work, metavar="K/N", help="every N-th cell from K on, counted from 0")
    add_phase_argument(parser)
    options = parser.parse_args(words)
    plan = _open(options)
    part, parts = options.part
    run_cells(plan, plan.cells()[part::parts], options.phase)


def merge_cells(words: Sequence[str], prog: str) -> None:
    about = """Write sweep.json, sweep.csv and sweep.html in the run folder's sweep/, without a model.

The exit status is 1 where cells are missing, which are named."""
    _finish(_open(config_parser(prog, about).parse_args(words)))


def test(words: Sequence[str], prog: str) -> None:
    about = "Measure what dev chose, and what it is compared with, on the test sets: once."
    parser = config_parser(prog, f"{about}\n\n{TWO_PHASES}")
    add_phase_argument(parser)
    _add_again(parser)
    options = parser.parse_args(words)
    plan = _open(options)
    if not plan.test:
        raise UserError("sweep.test: no question set is left to test on; name one that is not under dev")
    if blocked := _blocked(plan):
        raise UserError("the test is for what dev has chosen:\n  " + "\n  ".join(blocked))
    _test(plan, options.again, options.phase)
    if options.phase != "sample":
        _finish(plan)


SUBCOMMANDS = {
    "all": Subcommand("the same as without a command", run_all),
    "cells": Subcommand("the cells that choose, each with its state", cells),
    "cell": Subcommand("run some of them, such as 0/4", cell),
    "merge": Subcommand("write the tables of the cells that are there", merge_cells),
    "test": Subcommand("measure what dev chose on the test sets, once", test),
}


def _add_again(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--again", action="store_true", help="look at the test sets with another choice")


def _plan(options: argparse.Namespace) -> Sweep:
    config = config_of(options)
    if config.members:
        raise UserError("this config's tasks are its members'; sweep each of them")
    return plan_sweep(config)


def _open(options: argparse.Namespace) -> Sweep:
    plan = _plan(options)
    open_run(plan.config)
    return plan


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
