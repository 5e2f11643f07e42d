"""`ratchet ablate`: arms of one config with several seeds, and the table of all."""

from __future__ import annotations

import argparse
import io
import sys
import time
from dataclasses import replace
from pathlib import Path

from ratchet.commands.checks import check_extras, check_plugins
from ratchet.commands.rounds import run_of
from ratchet.commands.selftrain import loop, run_if_due, training_processes
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import write_atomic
from ratchet.core.locks import Lock, holder_of
from ratchet.core.progress import duration
from ratchet.evaluation.ablation import ablation_csv, ablation_latex, compare_arms, print_ablation
from ratchet.questions.manifest import open_run
from ratchet.rounds.ablation import (
    ArmRun,
    Arms,
    ablation_folder,
    plan_runs,
    read_arms_file,
    results_of,
    samplers,
    what_is_left,
)
from ratchet.rounds.fork import SAMPLED, fork, is_sampled
from ratchet.rounds.stages import ExperimentRun, stages_before_training
from ratchet.rounds.status import LOCK


def ablate(config: Config, options: argparse.Namespace) -> None:
    """Run what is not done of the arms, each of them a run that resumes, and write the table; or a part of that."""
    folder, arms = ablation_folder(config, options.arms), read_arms_file(options.arms)
    runs = plan_runs(run_of(config, options), folder, arms, options.seeds)
    for run in runs:
        try:
            check_plugins(run.experiment.config)
        except UserError as error:
            raise UserError(f"{run.arm}: {error}") from error
    if options.phase != "table":
        part, parts = options.part or (0, 1)
        chosen = (samplers(runs) if options.phase == "sample" else runs)[part::parts]
        failed = _run_all(chosen, only_sample=options.phase == "sample")
        if options.part or options.phase == "sample":
            print(f"\n{len(chosen) - failed} of {len(chosen)} runs are done; the table: the same with --phase table")
            return sys.exit(1) if failed else None
    _write_table(config, folder, arms, options.seeds, runs)


def _run_all(runs: list[ArmRun], only_sample: bool) -> int:
    """Run what is not done of these, one after the other, and return how many failed. A failure stops no other run."""
    began, failed = time.monotonic(), 0
    if not only_sample:
        for run in runs:
            check_extras(run.experiment.config)
        runs = [
            replace(run, experiment=replace(run.experiment, processes=training_processes(run.experiment)))
            for run in runs
        ]
    for number, run in enumerate(runs, 1):
        spent = duration(time.monotonic() - began)
        print(f"\n=== {number}/{len(runs)} {run.title} ({spent} so far): {run.run.path}", flush=True)
        try:
            if only_sample:
                _sample(run.experiment)
            else:
                _run(run)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            failed += 1
    return failed


def _run(run: ArmRun) -> None:
    """Run all stages of a run that are not done. One that reads from another begins as its fork."""
    if run.source is not None and not run.run.ledger.exists():
        if not is_sampled(run.source.run):
            try:
                _sample(run.source)
            except UserError as error:
                if not holder_of(run.source.run.path / LOCK):
                    raise
                first = "before parts that run at the same time, run the same with --phase sample"
                raise UserError(f"{error}. This run reads its trajectories: {first}") from error
        fork(run.experiment.config, run.source.run)
    open_run(run.experiment.config)
    with Lock(run.run.path / LOCK, "this run"):
        loop(run.experiment)


def _sample(experiment: ExperimentRun) -> None:
    """Sample what later runs read, unless that is done."""
    open_run(experiment.config)
    with Lock(experiment.run.path / LOCK, "this run"):
        for stage in stages_before_training(experiment, 1, None):
            if stage.id in SAMPLED:
                run_if_due(experiment, stage, stage.title, "0 s")


def _write_table(config: Config, folder: Path, arms: Arms, seeds: tuple[int, ...], runs: list[ArmRun]) -> None:
    """Write and print the table of the finished runs, and exit with 1 where others are missing."""
    left = {run.title: what_is_left(run.experiment) for run in runs}
    finished = {(run.arm, run.seed): results_of(run.experiment) for run in runs if not left[run.title]}
    if finished:
        table = compare_arms(arms, seeds, finished, config.seed)
        print_ablation(table, text := io.StringIO())
        for name, content in (("txt", text.getvalue()), ("csv", ablation_csv(table)), ("tex", ablation_latex(table))):
            write_atomic(folder / f"table.{name}", content)
        print_ablation(table)
        print(f"written to {folder / 'table.txt'}, and as table.csv and table.tex beside it")
    if missing := [f"{title}: {reason}" for title, reason in left.items() if reason]:
        print("\n".join(["these runs are not finished:", *(f"  {line}" for line in missing)]))
        sys.exit(1)
