"""`ratchet slurm JOB`: the commands of the main path as SLURM jobs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ratchet.agents.core.system import models_of
from ratchet.commands.checks import check_training_extras
from ratchet.commands.config import config_words
from ratchet.commands.models import planned_memory
from ratchet.commands.plan import hours_lines
from ratchet.core.config import Config, ModelConfig, load_members
from ratchet.core.errors import UserError
from ratchet.inference.serving.cards import CARDS, Card, card_asked
from ratchet.inference.tokenizer import is_hub_name
from ratchet.questions.leakage import check_leakage
from ratchet.questions.load import load_split
from ratchet.questions.manifest import check_same
from ratchet.rounds.stages import ExperimentRun, stages_of
from ratchet.slurm.plan import Job, JobRequest, plan, unused_resources
from ratchet.slurm.site import load_site
from ratchet.slurm.submit import Submission, script_of, submit

TRAINING = ("train", "round", "selftrain", "ablate")


def submit_job(config: Config, options: argparse.Namespace) -> None:
    """Submit the jobs, or print the submission. What would stop them is said before anything is submitted."""
    job: str = options.name.removeprefix("slurm ")
    site_file = options.site or (Path(os.environ["RATCHET_SITE"]) if os.environ.get("RATCHET_SITE") else None)
    site, card = load_site(site_file), card_asked(options.gpu, options.gpu_gb)
    if card and not options.dry_run:
        raise UserError("--gpu and --gpu-gb plan before anything is submitted: add --dry-run")
    if options.questions and not options.dry_run:
        raise UserError("--questions plans where the files of questions are not: add --dry-run")
    if options.questions and config.members:
        raise UserError("--questions: the config has `members`; plan each member with its own config")
    for warning in _check_config(config, options.questions) + (_check_training(config) if job in TRAINING else []):
        print(warning, file=sys.stderr)
    experiment, is_elsewhere = ExperimentRun(config, config_words(options)), options.questions is not None
    ablation = (options.arms, options.seeds) if job == "ablate" else None
    request = JobRequest(experiment, site, options.round, options.tasks, is_elsewhere, ablation)
    jobs = plan(job, request)
    for warning in dict.fromkeys(unused_resources(job, request, jobs)):
        print(f"warning: {warning}", file=sys.stderr)
    label = f"round-{options.round}" if options.round else ""
    submission = Submission(site, config.folder, label, options.rest)
    if options.dry_run:
        print(script_of(submission, jobs), end="")
        if card:
            print(*_memory_lines(_served(job, jobs, config), config, card, options.gpus), sep="\n")
        if options.questions:
            lines = hours_lines(config, options.questions, card or CARDS["A100-80"])
            print(f"\n# The work of {options.questions:,} questions:", *(f"# {line}" for line in lines), sep="\n")
    else:
        submit(submission, jobs, again=options.again)


def _memory_lines(served: set[tuple[str, ...]], config: Config, card: Card, gpus: int) -> Iterator[str]:
    """Yield, as comments of a script, how servers that run together share GPUs. Raises UserError where they do not
    fit."""
    for models in sorted(served):
        yield f"\n# The servers of {', '.join(models)}, on {gpus} GPU{'s' * (gpus > 1)} of {card.gb:g} GB:"
        yield from (f"# {line}" for line in planned_memory(config, models, card, gpus))


def _served(job: str, jobs: Sequence[Job], config: Config) -> set[tuple[str, ...]]:
    commands = [job.command for job in jobs]
    if job in ("round", "selftrain") and not config.members:
        commands = [stage.command for stage in stages_of(ExperimentRun(config, ()))]
    return {tuple(command[command.index("--models") + 1].split(",")) for command in commands if "--models" in command}


def _check_config(config: Config, planned: int | None) -> list[str]:
    """Check what would stop a job of this config, so that it fails here and not after a day in the queue. Returns
    warnings. `planned`: the number of questions where their files are not here."""
    check_same(config)
    warnings = []
    for name, member in load_members(config).items():
        if name:
            check_same(member)
        models_of([member.system, *member.evaluation.baselines.values()])
        for model_name, model in member.models.items():
            _check_model(f"models.{model_name}", model)
        if planned:
            continue
        on_disk = [split for split in member.splits.values() if not split.on_hub]
        if len(on_disk) == len(member.splits):
            warnings += check_leakage(member)
        else:  # the job downloads the others
            for split in on_disk:
                load_split(split, member.seed)
    return warnings


def _check_training(config: Config) -> list[str]:
    """Return a warning of what training would miss here, since the site's modules or setup may bring it."""
    try:
        check_training_extras(config.training)
    except UserError as error:
        return [f"warning: {error}; the job fails unless the site's modules or setup bring it"]
    return []


def _check_model(key: str, model: ModelConfig) -> None:
    if model.engine != "chat-api" and not Path(model.path).is_dir() and not is_hub_name(model.path):
        raise UserError(f"{key}.path: {model.path} does not exist")
    if model.script and not Path(model.script).exists():
        raise UserError(f"{key}.script: {model.script} does not exist")
