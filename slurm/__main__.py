"""python -m slurm JOB --config X [--site FILE] [--round N] [--tasks N] [--dry-run] [-- OPTIONS OF SBATCH]

The commands of the main path as SLURM jobs. JOB is one of

    index       the index, its shards as an array; then a job that writes the manifest
    sample      trajectories of a round, with a vLLM server beside it where the config says so; --tasks N shares them
    rewards     scores and selection, with the judge's server
    train       `accelerate launch train.py`
    evaluate    the adapter against the base model
    chain       all of a round as jobs that wait for each other, each with resources of its own
    round       all of a round in one job: servers are up only while a stage needs them, so one GPU is enough
    selftrain   every round, in one job
    sweep       the cells of `python -m evaluation sweep` as an array, the tables, and the test of what they choose;
                a judge that is to be served scores in an array of its own, when the agents' servers are gone

Before anything is submitted the config is checked, and that what a job reads is there. A job that is preempted or runs
out of time goes on where it was (slurm/job.sh). --dry-run prints the submission as a shell script.

    python -m slurm scale --config X     where each step stops fitting a GPU or a node, with the arithmetic
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ratchet.command import add_config_arguments, config_of, run_command
from slurm.check import check
from slurm.plan import JOBS, Request, plan
from slurm.site import load_site
from slurm.submit import Submission, script_of, submit


def main() -> None:
    if sys.argv[1:2] == ["scale"]:
        from slurm.scale import main as scale  # late: it is a command of its own

        return scale(sys.argv[2:])
    ours, options = _divided(sys.argv[1:])
    parser = argparse.ArgumentParser(
        prog="python -m slurm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", choices=JOBS, metavar="JOB")
    add_config_arguments(parser)
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
    jobs = plan(given.job, Request(config, arguments, site, given.round, given.tasks))
    label = f"round-{given.round}" if given.round else ""
    submission = Submission(site, config.folder, label, tuple(options))
    if given.dry_run:
        print(script_of(submission, jobs), end="")
    else:
        submit(submission, jobs, again=given.again)


def _divided(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what after -- is sbatch's."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    run_command(main)
