"""python -m slurm JOB --config X [--site FILE] [--round N] [--tasks N] [--dry-run] [-- OPTIONS OF SBATCH]"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ratchet.command import config_of, config_parser, run_command
from ratchet.subcommands import Subcommand, divided, run_subcommand
from slurm.check import check
from slurm.plan import Request, plan
from slurm.site import load_site
from slurm.submit import Submission, script_of, submit

ABOUT = """The commands of the main path as SLURM jobs.

Before anything is submitted the config is checked, and that what a job reads is there. A job that is preempted or runs
out of time goes on where it was (slurm/job.sh). --dry-run prints the submission as a shell script."""

JOBS = {
    "index": "the index, its shards as an array; then a job that writes the manifest",
    "sample": "trajectories of a round, with a vLLM server where the config says so; --tasks N shares them",
    "rewards": "scores and selection, with the judge's server",
    "train": "`accelerate launch train.py`",
    "evaluate": "the adapter against the base model",
    "chain": "all of a round as jobs that wait for each other, each with resources of its own",
    "round": "all of a round in one job: servers are up only while a stage needs them, so one GPU is enough",
    "selftrain": "every round, in one job",
    "sweep": "a sweep's cells as an array, a served judge's scores as another; the tables, and the test of the choice",
}


def main(words: Sequence[str] | None = None, prog: str = "python -m slurm") -> None:
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT)


def _submit(job: str, words: Sequence[str], prog: str) -> None:
    ours, options = divided(words)
    parser = config_parser(prog, f"As SLURM jobs: {JOBS[job]}. Options of sbatch may follow `--`.")
    parser.usage = f"{prog} --config X [options] [-- OPTIONS OF SBATCH]"
    parser.add_argument(
        "--site", type=Path, help="the cluster, as in slurm/site.example.yaml (default: what RATCHET_SITE names)"
    )
    parser.add_argument("--round", type=int, help="the round's number (default 1)")
    parser.add_argument("--tasks", type=int, help="index, sample, sweep: jobs that share the work, as an array")
    parser.add_argument("--dry-run", action="store_true", help="print what would be submitted, and submit nothing")
    parser.add_argument("--again", action="store_true", help="submit even if a job of this name is in the queue")
    given = parser.parse_args(ours)
    if given.tasks is not None and given.tasks < 1:
        parser.error("--tasks is at least 1")
    site_file = given.site or (Path(os.environ["RATCHET_SITE"]) if os.environ.get("RATCHET_SITE") else None)
    config, site = config_of(given), load_site(site_file)
    arguments = ("--config", given.config, *(word for one in given.overrides for word in ("--set", one)))
    for warning in check(config):
        print(warning, file=sys.stderr)
    jobs = plan(job, Request(config, arguments, site, given.round, given.tasks))
    label = f"round-{given.round}" if given.round else ""
    submission = Submission(site, config.folder, label, tuple(options))
    if given.dry_run:
        print(script_of(submission, jobs), end="")
    else:
        submit(submission, jobs, again=given.again)


SUBCOMMANDS = {
    **{job: Subcommand(about, partial(_submit, job)) for job, about in JOBS.items()},
    "scale": Subcommand("where each step stops fitting a GPU or a node, with the arithmetic", "slurm.scale:main"),
}


if __name__ == "__main__":
    run_command(main)
