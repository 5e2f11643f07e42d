"""ratchet slurm JOB --config X [--site FILE] [--round N] [--tasks N] [--dry-run] [-- OPTIONS OF SBATCH]"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from ratchet.agents.core.system import models_of
from ratchet.commands.arguments import (
    add_card_arguments,
    card_asked,
    config_of,
    config_parser,
    config_words,
    positive_integer,
)
from ratchet.commands.extras import check_training_extras
from ratchet.commands.serve_models import planned_memory
from ratchet.commands.subcommands import Subcommand, run_subcommand, split_at_dashes
from ratchet.core.config import Config, ModelConfig, load_members
from ratchet.core.errors import UserError
from ratchet.inference.serving.devices import Card
from ratchet.questions.leakage import check_leakage
from ratchet.questions.load import load_split
from ratchet.questions.manifest import check_same
from ratchet.rounds.stage import ExperimentRun
from ratchet.rounds.stages import stages_of
from ratchet.slurm.plan import Job, JobRequest, plan
from ratchet.slurm.site import load_site
from ratchet.slurm.submit import Submission, script_of, submit

ABOUT = """The commands of the main path as SLURM jobs.

Before anything is submitted, the config and the inputs of the jobs are checked. A job that is preempted or runs out of
time resumes (slurm/job.sh). --dry-run prints the submission as a shell script."""

JOBS = {
    "index": "the index, its shards as an array; then a job that writes the manifest",
    "sample": "trajectories of a round, with a vLLM server where the config says so; --tasks N shares them",
    "rewards": "scores and selection, with the judge's server",
    "train": "`accelerate launch train.py`",
    "evaluate": "the adapter against the base model",
    "round": "all of a round in one job: servers run only while a stage needs them, so one GPU is enough",
    "selftrain": "every round, in one job",
    "sweep": "a sweep's cells as an array, a served judge's scores as another; the tables, and the test of the choice",
}
TRAINING = ("train", "round", "selftrain")


def main(words: Sequence[str] | None = None, prog: str = "ratchet slurm") -> None:
    """Run the subcommand that `words` name."""
    run_subcommand(SUBCOMMANDS, words, prog, ABOUT)


def _submit(job: str, words: Sequence[str], prog: str) -> None:
    ours, options = split_at_dashes(words)
    parser = config_parser(prog, f"Submit as SLURM jobs: {JOBS[job]}. Options of sbatch may follow `--`.")
    parser.usage = f"{prog} --config X [options] [-- OPTIONS OF SBATCH]"
    parser.add_argument(
        "--site",
        type=Path,
        help="the site file, such as slurm/site.example.yaml (default: the file that RATCHET_SITE names)",
    )
    parser.add_argument("--round", type=positive_integer, metavar="N", help="the round's number (default 1)")
    parser.add_argument(
        "--tasks", type=int, help="index, sample, sweep: the number of jobs that share the work, as an array"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the submission as a shell script, and submit nothing"
    )
    add_card_arguments(parser, "with --dry-run: say how servers share its memory; ")
    parser.add_argument("--again", action="store_true", help="submit even if a job of this name is in the queue")
    given = parser.parse_args(ours)
    if given.tasks is not None and given.tasks < 1:
        parser.error("--tasks is at least 1")
    site_file = given.site or (Path(os.environ["RATCHET_SITE"]) if os.environ.get("RATCHET_SITE") else None)
    config, site, card = config_of(given), load_site(site_file), card_asked(given)
    if card and not given.dry_run:
        parser.error("--gpu and --gpu-gb plan before anything is submitted: add --dry-run")
    for warning in _check_config(config) + (_check_training(config) if job in TRAINING else []):
        print(warning, file=sys.stderr)
    jobs = plan(job, JobRequest(ExperimentRun(config, config_words(given)), site, given.round, given.tasks))
    label = f"round-{given.round}" if given.round else ""
    submission = Submission(site, config.folder, label, tuple(options))
    if given.dry_run:
        print(script_of(submission, jobs), end="")
        if card:
            print(*_memory_lines(_served(job, jobs, config), config, card, given.gpus), sep="\n")
    else:
        submit(submission, jobs, again=given.again)


def _memory_lines(served: set[tuple[str, ...]], config: Config, card: Card, gpus: int) -> Iterator[str]:
    """As comments of a script, how servers that run together share GPUs. UserError where they do not fit."""
    for models in sorted(served):
        yield f"\n# The servers of {', '.join(models)}, on {gpus} GPU{'s' * (gpus > 1)} of {card.gb:g} GB:"
        yield from (f"# {line}" for line in planned_memory(config, models, card, gpus))


def _served(job: str, jobs: Sequence[Job], config: Config) -> set[tuple[str, ...]]:
    """The models that are served together, by the jobs or, in one that runs all stages, by a stage."""
    commands = [job.command for job in jobs]
    if job in ("round", "selftrain") and not config.members:
        commands = [stage.command for stage in stages_of(ExperimentRun(config, ()))]
    return {tuple(command[command.index("--models") + 1].split(",")) for command in commands if "--models" in command}


def _check_config(config: Config) -> list[str]:
    """Check what would stop a job of this config, so that it fails here and not after a day in the queue.

    Returns warnings; UserError. Opens no model and writes nothing.
    """
    check_same(config)
    warnings = []
    for name, member in load_members(config).items():
        if name:
            check_same(member)
        models_of([member.system, *member.evaluation.baselines.values()])
        for model_name, model in member.models.items():
            _check_model(f"models.{model_name}", model)
        on_disk = [split for split in member.splits.values() if not split.on_hub]
        if len(on_disk) == len(member.splits):
            warnings += check_leakage(member)
        else:  # the job downloads the others
            for split in on_disk:
                load_split(split, member.seed)
    return warnings


def _check_training(config: Config) -> list[str]:
    """What training would miss here. The site's modules or setup may bring it, so that it is a warning."""
    try:
        check_training_extras(config.training)
    except UserError as error:
        return [f"warning: {error}; the job fails unless the site's modules or setup bring it"]
    return []


def _check_model(key: str, model: ModelConfig) -> None:
    """Check that a path exists. A name such as org/model may be on the hub and is not checked."""
    paths = {"path": model.path if model.engine != "chat-api" else "", "script": model.script or ""}
    for name, path in paths.items():
        if path.startswith(("/", "./", "../")) and not Path(path).exists():
            raise UserError(f"{key}.{name}: {path} does not exist")


SUBCOMMANDS = {job: Subcommand(about, partial(_submit, job)) for job, about in JOBS.items()}
