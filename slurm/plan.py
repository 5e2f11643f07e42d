"""Which jobs a command line stands for: the command of each, what it waits for, how many GPUs its models want.

The commands are those of `rounds/stages.py`, so a job runs what `selftrain.py` would, servers around it included.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from agents.core.registry import models_of
from evaluation.sweep.cells import plan_sweep
from inference.addresses import needs_server
from inference.serving.settings import serve_config
from ratchet.config import Config, load_members
from ratchet.errors import UserError
from ratchet.parsing import read_mapping
from retrieval.layout import MANIFEST
from rounds.promotion import kept_any, last_promoted, read_promotion
from rounds.records import StageId
from rounds.settings import rounds_of
from rounds.stages import (
    MODULE,
    TRAIN,
    Experiment,
    Stage,
    apart,
    before_training,
    evaluating,
    judge_of,
    promoting,
    reporting,
    training,
)
from slurm.site import Site, resources_of

ROOT = Path(TRAIN).parent
TASK = "@TASK@"
"""In a command: the number of the array's task (slurm/job.sh)."""


@dataclass(frozen=True)
class Job:
    name: str
    resources: str
    """Whose in the site file."""
    command: tuple[str, ...]
    gpus: int = 0
    """What its models want; the site file may say otherwise."""
    tasks: int = 0
    """Of an array; 0: a single job."""
    after: str = ""
    """The job that it waits for."""
    condition: Literal["afterok", "afterany", "aftercorr"] = "afterok"
    """aftercorr: task by task, of an array that waits for an array."""


@dataclass(frozen=True)
class Request:
    """What the user asks to have submitted."""

    config: Config
    arguments: tuple[str, ...]
    """--config and --set, as they were given."""
    site: Site
    number: int | None = None
    """The round."""
    shared_by: int | None = None
    """Tasks of an array, instead of the site file's number."""

    @property
    def round(self) -> int:
        return self.number or 1

    @property
    def experiment(self) -> Experiment:
        return Experiment(self.config, self.arguments)

    @property
    def origin(self) -> int | None:
        """The round whose adapter this round samples with; None: the base model."""
        return last_promoted(self.experiment.run, before=self.round)

    def tasks(self, job: str, default: int = 0) -> int:
        return self.shared_by or resources_of(self.site, job).tasks or default


def plan(job: str, request: Request) -> list[Job]:
    """The jobs in the order of their submission. UserError where one of them would fail for want of what it reads."""
    config = request.config
    if config.members and job not in ("train", "round", "selftrain"):
        raise UserError(f"{job}: this config's tasks are its members'; submit theirs, or `selftrain` for all of them")
    _check_round(job, request)
    if job == "chain":
        return _chain(request)
    if job in ("round", "selftrain"):
        return [_loop(job, request)]
    if job == "sweep":
        return _sweep(request)
    if job == "index":
        return _index(request)
    _check_there(job, request)
    if job == "evaluate":
        return _measuring(request, evaluating(request.experiment, request.round, with_adapter=True))
    return [{"sample": _sample, "rewards": _rewards, "train": _train}[job](request)]


def _stages(request: Request) -> dict[StageId, Stage]:
    """The stages before training, by id."""
    found = before_training(request.experiment, request.round, request.origin)
    return {stage.id: stage for stage in found}


def _index(request: Request) -> list[Job]:
    if request.config.index.url is not None:
        raise UserError("index.url is set: the index is another machine's; there is nothing to build here")
    for name in request.config.index.documents:
        if not Path(name).exists():
            raise UserError(f"index.documents: {name} is not there")
    command = (*MODULE, "index_build", *request.arguments)
    tasks = request.tasks("index", 8)
    if tasks == 1:
        return [Job("index", "index", command)]
    shards = Job("index", "index", (*command, "--job", f"{TASK}/{tasks}"), tasks=tasks)
    return [shards, Job("manifest", "merge", command, after="index")]


def _sample(request: Request) -> Job:
    stage, tasks = _stages(request)["sample"], request.tasks("sample", 1)
    gpus = gpus_of(request.config, models_of([request.config.system]))
    if tasks == 1:
        return Job("sample", "sample", stage.command, gpus)
    return Job("sample", "sample", (*stage.command, "--part", f"{TASK}/{tasks}"), gpus, tasks)


def _rewards(request: Request) -> Job:
    stage, judge = _stages(request)["score"], judge_of(request.config, request.config.rewards.weights)
    return Job("rewards", "rewards", stage.command, gpus_of(request.config, judge))


def _train(request: Request) -> Job:
    stage = training(request.experiment, request.round, request.origin)
    script = stage.command[stage.command.index(TRAIN) :]
    gpus = training_gpus(request)
    return Job("train", "train", (*launch(request, gpus), *script), gpus)


def _measuring(request: Request, stages: Iterable[Stage], after: str = "") -> list[Job]:
    """An evaluation: one job, or a second one for the judge."""
    config, jobs = request.config, []
    models = models_of([config.system, *config.evaluation.baselines.values()])
    models |= judge_of(config, config.evaluation.scores)
    for stage in stages:
        asked = set(stage.models) or models
        jobs.append(Job(stage.id.replace(".", "-"), "evaluate", stage.command, gpus_of(config, asked), after=after))
        after = jobs[-1].name
    return jobs


def _chain(request: Request) -> list[Job]:
    """One round as separate jobs, each with resources of its own."""
    experiment, number, many = request.experiment, request.round, rounds_of(request.config).count > 1
    jobs = []
    if number == 1 and request.config.index.url is None and not _has_index(request.config):
        jobs += _index(request)
    for make in (_sample, _rewards, _train):
        jobs.append(replace(make(request), after=jobs[-1].name if jobs else ""))
    if many:
        jobs += _measuring(request, promoting(experiment, number, request.origin, has_candidate=True), "train")
    else:
        jobs += _measuring(request, evaluating(experiment, number, with_adapter=True), "train")
    report = reporting(experiment, number)
    return [*jobs, Job("report", "merge", report.command, after=jobs[-1].name)]


def _loop(job: str, request: Request) -> Job:
    """selftrain.py: it has servers up only while a stage needs them, so one GPU is enough for all."""
    config, accelerate = request.config, request.site.accelerate
    models: set[str] = set()
    for member in load_members(config).values():
        models |= models_of([member.system, *member.evaluation.baselines.values()])
        models |= judge_of(member, {*member.rewards.weights, *member.evaluation.scores})
    command = [sys.executable, str(ROOT / "selftrain.py"), *request.arguments]
    command += ["--until", str(request.round)] if job == "round" else []
    command += ["--accelerate", accelerate] if accelerate else []
    return Job(job, job, tuple(command), max(gpus_of(config, models), training_gpus(request, alone=False)))


def _sweep(request: Request) -> list[Job]:
    """The cells as an array, the tables, which name what is missing, and the test of what they choose."""
    config, found = request.config, plan_sweep(request.config)
    sweep = (*MODULE, "evaluation", "sweep", *request.arguments)
    cells = len(found.cells())
    tasks = min(request.tasks("sweep", cells), cells)
    agents, judge = models_of(found.systems.values()), judge_of(config, config.evaluation.scores)

    def job(name: str, models: set[str], words: tuple[str, ...], tasks: int, after: str) -> Job:
        _, command = request.experiment.beside_servers(models, (*sweep, *words))
        return Job(name, "sweep", command, gpus_of(config, models), tasks, after)

    def both(name: str, words: tuple[str, ...], tasks: int = 0, after: str = "") -> list[Job]:
        """Sampled and scored: by one job, or by two where the judge is not to be up beside the agents."""
        if not apart(config, agents, judge):
            return [job(name, agents | judge, words, tasks, after)]
        sampled = job(f"{name}-sample", agents, (*words, "--phase", "sample"), tasks, after)
        scored = job(name, judge, (*words, "--phase", "score"), tasks, sampled.name)
        return [sampled, replace(scored, condition="aftercorr") if tasks else scored]

    run = both("sweep", ("cell", f"{TASK}/{tasks}"), tasks)
    merge = Job("merge", "merge", (*sweep, "merge"), after="sweep", condition="afterany")
    return [*run, merge, *(both("test", ("test",), after="merge") if found.test else [])]


def gpus_of(config: Config, names: Iterable[str]) -> int:
    """What the models want that run in the job: one, and as many as servers of one model are spread over."""
    wanted = [0]
    for name in names:
        model = config.models[name]
        if model.device == "cpu" or not (model.engine == "local" or needs_server(name, model)):
            continue
        serve = serve_config(config, name)
        wanted.append(serve.replicas * serve.tensor_parallel if model.engine == "vllm" else 1)
    return max(wanted)


def training_gpus(request: Request, alone: bool = True) -> int:
    """As many as the site file gives to `train` alone, or as accelerate's config has processes, or one."""
    if request.config.models[request.config.training.model].device == "cpu":
        return 0
    file = request.site.accelerate
    found = read_mapping(Path(file)) if file else {}
    if found.get("use_cpu"):
        return 0
    asked = resources_of(request.site, "train").gpus if alone else None
    return int(found.get("num_processes", 1)) if asked is None else asked


def launch(request: Request, gpus: int) -> tuple[str, ...]:
    """`accelerate launch` as it must be where the job runs, whatever the machine is that submits."""
    start = (*MODULE, "accelerate.commands.launch")
    if file := request.site.accelerate:
        return (*start, "--config_file", file, *((f"--num_processes={gpus}",) if gpus else ()))
    plain = ("--num_machines=1", "--dynamo_backend=no", "--mixed_precision=no", f"--num_processes={max(gpus, 1)}")
    return (*start, *plain, *(("--cpu",) if gpus == 0 else ()), *(("--multi_gpu",) if gpus > 1 else ()))


def _has_index(config: Config) -> bool:
    return all(index.url or (Path(index.path) / MANIFEST).exists() for index in config.index.parts or (config.index,))


def _check_round(job: str, request: Request) -> None:
    """A round's adapter is decided on before the next one samples; only `round` and `selftrain` do both."""
    count, before = rounds_of(request.config).count, request.round - 1
    if not 1 <= request.round <= count:
        raise UserError(f"--round {request.round}: rounds.count is {count}")
    if job in ("sample", "train", "chain") and before and not read_promotion(request.experiment.run.round(before)):
        raise UserError(f"--round {request.round}: round {before} is not decided yet; its promotion comes first")


def _check_there(job: str, request: Request) -> None:
    """What a job reads that another one makes."""
    folder, shell = request.experiment.run.round(request.round), f"python -m slurm {{}} {' '.join(request.arguments)}"
    if job == "sample" and request.config.index.url is None and not _has_index(request.config):
        raise UserError(
            f"{request.config.index.path or 'index.parts'}: the index is not built; `{shell.format('index')}` builds it"
        )
    if job == "rewards" and not any(folder.trajectories.glob("*.jsonl")):
        raise UserError(f"{folder.trajectories}: no trajectories; `{shell.format('sample')}` samples them")
    if job == "train" and not request.config.members:
        if not folder.selection.exists():
            raise UserError(f"{folder.selection}: nothing is selected; `{shell.format('rewards')}` does it")
        if not kept_any(folder):
            raise UserError(f"{folder.selection}: it keeps no trajectory, so there is nothing to train on")
    if job == "evaluate" and not (folder.adapter / "adapter_config.json").exists():
        raise UserError(f"{folder.adapter}: there is no adapter; `{shell.format('train')}` trains it")
