"""ratchet selftrain --config configs/X.yaml: self-training, from documents to report.

One round, or as many as `rounds.count` says: each samples with the last adapter that was promoted, learns from the
best, and promotes the new adapter if it is better on dev (`rounds/adapters.py`). The best is then tested, once.

Each stage (`rounds/stages.py`) is a process of its own, the same command that a user can type or a job can run. What
is finished is recorded by content (`rounds/ledger.py`): run this again after a crash, a kill or Ctrl-C and it
resumes there.

    ratchet status --config X        what is done, what is left and where it resumes; only reads
    ratchet selftrain --config X --dry-run     the commands of what is left
    ratchet selftrain --config X --accelerate configs/accelerate/fsdp.yaml    how `accelerate launch` trains

Training uses all GPUs that are visible, as configs/accelerate/ddp.yaml says, or the file of --accelerate.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType

from ratchet.commands.checks import check_extras
from ratchet.commands.config import IN_LOOP
from ratchet.commands.recording import record_when_done
from ratchet.commands.rounds import run_of
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.escape import shell_line
from ratchet.core.locks import Lock
from ratchet.core.parsing import read_mapping
from ratchet.core.progress import duration
from ratchet.evaluation.arms import results_path
from ratchet.evaluation.results import read_results
from ratchet.evaluation.round_arms import baseline_adapters
from ratchet.evaluation.tables.comparison import print_summary
from ratchet.inference.serving.memory import visible_gpus
from ratchet.questions.manifest import open_run
from ratchet.rounds.artefacts import Digests
from ratchet.rounds.ledger import earlier_test_rounds, latest_entries, reason_to_run
from ratchet.rounds.records import why_it_ended
from ratchet.rounds.stages import ExperimentRun, Stage, stages_of
from ratchet.rounds.status import LOCK
from ratchet.training.schedule import accumulation_steps, check_model_is_open
from ratchet.training.unsloth import check_unsloth


def selftrain(config: Config, options: argparse.Namespace) -> None:
    """Run every stage that is not done, or print the commands."""
    experiment = run_of(config, options)
    check_extras(experiment.config)
    experiment = replace(experiment, processes=training_processes(experiment))
    if options.dry_run:
        print_commands(experiment)
    else:
        run = open_run(experiment.config)
        with Lock(run.path / LOCK, "this run"):
            loop(experiment, options.until)


def training_processes(experiment: ExperimentRun) -> int | None:
    """Return `ExperimentRun.processes`, before the first stage: training comes after hours of sampling.

    Raises UserError where training.batch_size cannot be divided over the processes, the model cannot be trained,
    training asks for GPU kernels that cannot run here, or the adapter of a baseline is missing.
    """
    training, file = experiment.config.training, experiment.accelerate
    check_model_is_open(training.model, experiment.config.models[training.model])
    baseline_adapters(experiment.config.evaluation)
    launch = read_mapping(Path(file)) if file is not None else {}
    on_cpu = experiment.config.models[training.model].device == "cpu" or launch.get("use_cpu")
    gpus = 0 if on_cpu else len(visible_gpus())
    if training.backend == "unsloth":
        check_unsloth(has_gpu=gpus > 0)
    if file is not None and (gpus == 0 or int(launch.get("num_machines") or 1) > 1):
        # Without a GPU, and over several machines, the file alone says how many.
        accumulation_steps(training, int(launch.get("num_processes") or 1))
        return None
    fitting = [n for n in range(1, gpus + 1) if training.batch_size % (training.micro_batch * n) == 0]
    processes = max(fitting, default=1)
    accumulation_steps(training, processes)
    if gpus < 2 and file is None:
        return None
    fewer = f" (training.batch_size={training.batch_size} cannot be divided over more)" if processes < gpus else ""
    print(f"training uses {processes} of {gpus} visible GPUs{fewer}", flush=True)
    return processes


def loop(experiment: ExperimentRun, until: int | None = None) -> None:
    """Run every stage that is not done; with `until`, of the rounds up to that one."""
    began, total, evaluated = time.monotonic(), len(list(stages_of(experiment))), 1
    for number, stage in enumerate(stages_of(experiment), 1):
        if until is not None and stage.round > until:
            print(f"\nround {until} is done; without --until, the same command resumes")
            return
        evaluated = stage.round if stage.id in ("evaluate", "test") else evaluated
        spent = duration(time.monotonic() - began)
        run_if_due(experiment, stage, f"{number}/{total} {stage_name(experiment, stage)}", spent)
    if ended := why_it_ended(experiment.config):
        print(f"\n{ended}")
    if not experiment.config.members:  # their last stage prints a table of all
        splits = experiment.config.evaluation.question_sets
        suite = [read_results(results_path(experiment.run.round(evaluated), split)) for split in splits]
        print()
        print_summary([results for results in suite if results is not None])
    print(f"done in {duration(time.monotonic() - began)}; the report is {experiment.run.report}")


def run_if_due(experiment: ExperimentRun, stage: Stage, title: str, spent: str) -> None:
    """Run a stage and record it, unless it is done. Raises UserError where it fails."""
    digests = Digests(experiment.run)
    known = latest_entries(experiment.run)
    due = reason_to_run(stage, known, digests)
    digests.save()
    if due is None:
        print(f"== {title}: done before", flush=True)
        return
    again = f": again, {due.reason}" if due.again else ""
    print(f"\n== {title}{again} ({spent} so far)", flush=True)
    with record_when_done(experiment.run, [stage], digests) as [inputs]:
        if tested := earlier_test_rounds(stage, inputs, known):
            rounds = ", ".join(map(str, tested))
            print(
                f"warning: these test questions were asked before, with the adapter of round {rounds}; "
                "a second test on them is optimistically biased: report the first number, or take fresh questions",
                flush=True,
            )
        status = run_stage(stage.command)
        if status != 0:
            raise UserError(
                f"the stage '{title}' ended with status {status}; what it finished is kept. After fixing what it "
                "says above, run the same command again."
            )


def print_commands(experiment: ExperimentRun) -> None:
    """Print the commands of what is left. Which adapters later rounds use is decided as they come."""
    known, digests = latest_entries(experiment.run), Digests(experiment.run)
    for stage in stages_of(experiment):
        due = reason_to_run(stage, known, digests)
        print(f"# {stage_name(experiment, stage)}: {due.reason if due else 'done'}")
        if due:
            print(shell_line(stage.command))


def stage_name(experiment: ExperimentRun, stage: Stage) -> str:
    """Name a stage for people, with its round where the run has several."""
    several = not experiment.config.members and experiment.config.rounds.count > 1
    return f"round {stage.round}: {stage.title}" if several else stage.title


def run_stage(command: tuple[str, ...]) -> int:
    """Run one stage to its end. SIGTERM is passed on, so that the stage stops in order; then we stop as well."""
    process = subprocess.Popen(command, cwd=Path.cwd(), env={**os.environ, IN_LOOP: "1"})
    before = signal.getsignal(signal.SIGTERM)

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, pass_on)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()  # the terminal sent it Ctrl-C as well
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
