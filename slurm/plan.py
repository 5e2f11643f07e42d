"""The jobs of a command line: the command of each, the job it waits for, and the GPUs that its models need.

The commands are those of `rounds/stages.py`, so a job runs what `ratchet selftrain` would, servers around it included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ratchet.agents.core.system import models_of
from ratchet.core.config import Config, is_missing, load_members
from ratchet.core.errors import UserError
from ratchet.core.parsing import read_mapping
from ratchet.evaluation.sweep import plan_sweep
from ratchet.inference.adapters import is_adapter
from ratchet.inference.engines import needs_server
from ratchet.retrieval.layout import MANIFEST
from ratchet.rewards.reward import judge_of
from ratchet.rounds.ablation import ablation_folder, plan_runs, read_arms_file, samplers
from ratchet.rounds.records import kept_any, last_promoted, read_promotion
from ratchet.rounds.stages import (
    CPU_DDP,
    DDP,
    LAUNCH,
    TRAIN,
    ExperimentRun,
    Stage,
    evaluation_stages,
    judge_runs_apart,
    stages_before_training,
    training_stage,
)
from ratchet.sampling.store import TrajectoryStore
from ratchet.slurm.site import Site, resources_of
from ratchet.training.schedule import accumulation_steps

TASK = "@TASK@"
"""In a command: the number of the array's task (slurm/job.sh)."""
RENDEZVOUS = ("--machine_rank=@NODE@", "--main_process_ip=@FIRST_NODE@", "--main_process_port=@PORT@")
"""In the command of a job over several nodes: which of them it is, and where they meet (slurm/node.sh)."""


@dataclass(frozen=True)
class Job:
    """One job, or one array of jobs."""

    name: str
    resources: str
    """The key of `jobs` in the site file that sets its resources."""
    command: tuple[str, ...]
    gpus: int = 0
    """The number of GPUs that its models need; the site file can override it."""
    usable_gpus: int = 0
    """The number of GPUs that its models can use, each of them on GPUs of its own."""
    tasks: int = 0
    """The number of tasks of an array; 0: a single job."""
    after: str = ""
    """The job that it waits for."""
    condition: Literal["afterok", "afterany", "aftercorr"] = "afterok"
    """afterok, afterany, or aftercorr: each task waits for the task of the same number."""


@dataclass(frozen=True)
class JobRequest:
    """The request of a command line."""

    experiment: ExperimentRun
    site: Site
    number: int | None = None
    """The round."""
    num_tasks: int | None = None
    """The number of tasks of an array; None: the site file's."""
    is_elsewhere: bool = False
    """True where the inputs of the jobs need not be on this machine."""
    ablation: tuple[Path, tuple[int, ...]] | None = None
    """The file with the arms of an ablation, and its seeds."""

    @property
    def round(self) -> int:
        return self.number or 1

    @property
    def config(self) -> Config:
        return self.experiment.config

    def tasks(self, job: str, default: int = 0) -> int:
        return self.num_tasks or resources_of(self.site, job).tasks or default


def plan(job: str, request: JobRequest) -> list[Job]:
    """Return the jobs in the order of their submission. Raises UserError where an input of one of them is missing."""
    config = request.config
    if config.members and job not in ("train", "round", "selftrain"):
        raise UserError(f"{job}: this config's tasks are its members'; submit theirs, or `selftrain` for all of them")
    _check_round(job, request)
    if job in ("round", "selftrain"):
        return [_selftrain_job(job, request)]
    if job == "sweep":
        return _sweep_jobs(request)
    if job == "ablate":
        return _ablation_jobs(request)
    if job == "index":
        return _index_jobs(request)
    if not request.is_elsewhere:
        _check_inputs(job, request)
    experiment, number = request.experiment, request.round
    origin = last_promoted(experiment.run, before=number)
    if job == "evaluate":
        stages = evaluation_stages(experiment, number, with_adapter=True)
    elif job == "train":
        stages = [training_stage(experiment, number, origin)]
    else:
        id = "score" if job == "rewards" else "sample"
        stages = [stage for stage in stages_before_training(experiment, number, origin) if stage.id == id]
    jobs: list[Job] = []
    for stage in stages:  # an evaluation whose judge runs apart is two
        jobs.append(replace(_stage_job(request, stage), after=jobs[-1].name if jobs else ""))
    return jobs


def _index_jobs(request: JobRequest) -> list[Job]:
    if not request.config.index.built:
        raise UserError("index.url or index.source is set: another machine serves the index; there is nothing to build")
    for name in request.config.index.documents:
        if not Path(name).exists():
            raise UserError(f"index.documents: {name} does not exist")
    command = request.experiment.command("index")
    tasks = request.tasks("index", 8)
    if tasks == 1:
        return [Job("index", "index", command)]
    shards = Job("index", "index", (*command, "--job", f"{TASK}/{tasks}"), tasks=tasks)
    return [shards, Job("manifest", "merge", command, after="index")]


def _stage_job(request: JobRequest, stage: Stage) -> Job:
    name = "rewards" if stage.id == "score" else stage.id.replace(".", "-")
    if stage.id == "train":
        script = stage.command[stage.command.index(TRAIN[-1]) - len(TRAIN) + 1 :]
        gpus, nodes = training_gpus(request), resources_of(request.site, "train").nodes
        launch = accelerate_launch(request, gpus, nodes)
        accumulation_steps(request.config.training, _processes_of(launch))
        return Job(name, "train", (*launch, *script), gpus, gpus)
    resources = name if name in ("sample", "rewards") else "evaluate"
    each = gpus_of(request.experiment, stage.asks)
    job = Job(name, resources, stage.command, max(each), sum(each))
    tasks = request.tasks("sample", 1) if name == "sample" else 1
    return job if tasks == 1 else replace(job, command=(*job.command, "--part", f"{TASK}/{tasks}"), tasks=tasks)


def _selftrain_job(job: str, request: JobRequest) -> Job:
    """Return the job of `ratchet selftrain`, which runs servers only while a stage needs them, so one GPU is enough."""
    until = ("--until", str(request.round)) if job == "round" else ()
    command = (*request.experiment.command("selftrain"), *until, *_accelerate(request))
    return Job(job, job, command, *_gpus_of_run(request))


def _accelerate(request: JobRequest) -> tuple[str, ...]:
    return ("--accelerate", request.site.accelerate) if request.site.accelerate else ()


def _gpus_of_run(request: JobRequest) -> tuple[int, int]:
    """The most GPUs that one stage of a run needs, and those that its models can use."""
    models: set[str] = set()
    for member in load_members(request.config).values():
        models |= models_of([member.system, *member.evaluation.baselines.values()])
        models |= judge_of(member, [*member.rewards.weights, *member.evaluation.scores])
        models |= member.sampling.teacher.models
    gpus = gpus_of(request.experiment, models)
    return max(*gpus, training_gpus(request, alone=False)), sum(gpus)


def _ablation_jobs(request: JobRequest) -> list[Job]:
    """What arms share as an array, the runs as another, and the table."""
    assert request.ablation is not None, "the command line asks for it"
    file, seeds = request.ablation
    runs = plan_runs(request.experiment, ablation_folder(request.config, file), read_arms_file(file), seeds)
    command = request.experiment.command("ablate", "--arms", str(file), "--seeds", ",".join(map(str, seeds)))
    gpus, jobs = _gpus_of_run(request), list[Job]()
    if shared := len(samplers(runs)):
        shares = (*command, "--phase", "sample", "--part", f"{TASK}/{shared}")
        jobs.append(Job("ablate-sample", "sample", shares, *gpus, shared))
    tasks = min(request.num_tasks or len(runs), len(runs))
    part = (*command, "--part", f"{TASK}/{tasks}", *_accelerate(request))
    jobs.append(Job("ablate", "selftrain", part, *gpus, tasks, jobs[-1].name if jobs else ""))
    return [*jobs, Job("table", "merge", (*command, "--phase", "table"), after="ablate", condition="afterany")]


def _sweep_jobs(request: JobRequest) -> list[Job]:
    """The cells as an array, the tables, which name missing cells, and the test of the chosen checkpoints."""
    config, planned = request.config, plan_sweep(request.config)
    cells = len(planned.cells())
    tasks = min(request.tasks("sweep", cells), cells)
    agents, judge = models_of(planned.systems.values()), judge_of(config, config.evaluation.scores)

    def job(name: str, models: set[str], words: tuple[str, ...], tasks: int, after: str) -> Job:
        _, served = request.experiment.beside_servers(models, request.experiment.command("sweep", *words))
        gpus = gpus_of(request.experiment, models)
        return Job(name, "sweep", served, max(gpus), sum(gpus), tasks, after)

    def sample_and_score_jobs(name: str, words: tuple[str, ...], tasks: int = 0, after: str = "") -> list[Job]:
        """One job that samples and scores, or two where the judge must not run while the agents do."""
        if not judge_runs_apart(config.models, agents, judge):
            return [job(name, agents | judge, words, tasks, after)]
        sampled = job(f"{name}-sample", agents, (*words, "--phase", "sample"), tasks, after)
        scored = job(name, judge, (*words, "--phase", "score"), tasks, sampled.name)
        return [sampled, replace(scored, condition="aftercorr") if tasks else scored]

    run = sample_and_score_jobs("sweep", ("cell", f"{TASK}/{tasks}"), tasks)
    merge = Job("merge", "merge", request.experiment.command("sweep", "merge"), after="sweep", condition="afterany")
    return [*run, merge, *(sample_and_score_jobs("test", ("test",), after="merge") if planned.test else [])]


def gpus_of(experiment: ExperimentRun, names: Iterable[str]) -> list[int]:
    """Return the GPUs of each of the models that run in the job, and a 0. Models may share GPUs."""
    gpus = [0]
    for name in names:
        model = experiment.config.models[name]
        if model.device == "cpu" or not (model.engine == "local" or needs_server(name, model)):
            continue
        serve = experiment.config.serve_config(name)
        gpus.append(serve.copies * serve.split if model.engine == "vllm" else 1)
    return gpus


def training_gpus(request: JobRequest, alone: bool = True) -> int:
    """Return the GPUs of each node: the site file's for `train` if `alone`, else accelerate's num_processes, else
    one."""
    if request.config.models[request.config.training.model].device == "cpu":
        return 0
    file = request.site.accelerate
    launch = read_mapping(Path(file)) if file else {}
    if launch.get("use_cpu"):
        return 0
    asked = resources_of(request.site, "train").gpus if alone else None
    return int(launch.get("num_processes", 1)) if asked is None else asked


def accelerate_launch(request: JobRequest, gpus: int, nodes: int = 1) -> tuple[str, ...]:
    """Return `accelerate launch` with options for the machines of the job, not for the one that submits.

    Over several nodes, each runs this command with one process for each of its GPUs, or one without a GPU.
    """
    start = LAUNCH
    file = request.site.accelerate
    if nodes > 1:
        counts = (f"--num_machines={nodes}", f"--num_processes={nodes * max(gpus, 1)}")
        return (*start, "--config_file", file or (DDP if gpus else CPU_DDP), *counts, *RENDEZVOUS)
    if file:
        return (*start, "--config_file", file, *((f"--num_processes={gpus}",) if gpus else ()))
    plain = ("--num_machines=1", "--dynamo_backend=no", "--mixed_precision=no", f"--num_processes={max(gpus, 1)}")
    return (*start, *plain, *(("--cpu",) if gpus == 0 else ()), *(("--multi_gpu",) if gpus > 1 else ()))


def _processes_of(launch: Sequence[str]) -> int:
    """The number of processes that a launcher's command line or its config file says."""
    counts = [word.partition("=")[2] for word in launch if word.startswith("--num_processes=")]
    file = launch[launch.index("--config_file") + 1] if "--config_file" in launch else ""
    return int(counts[-1] if counts else read_mapping(Path(file)).get("num_processes", 1))


def unused_resources(job: str, request: JobRequest, jobs: Sequence[Job]) -> Iterator[str]:
    """Warn of what the site file asks for and the jobs do not use. Raises UserError where it asks for too little."""
    site = request.site
    nodes = resources_of(site, "train").nodes
    if nodes > 1 and job in ("round", "selftrain"):
        yield f"jobs.train.nodes: {nodes} holds for `ratchet slurm train` alone: `{job}` trains on one node"
    for one in jobs:
        asked = resources_of(site, one.resources).gpus
        if not asked or one.resources == "train":
            continue
        own = getattr(site.jobs, one.resources) if one.resources in site.jobs.model_fields_set else None
        is_own = own is not None and "gpus" in own.model_fields_set
        key = f"jobs.{one.resources if is_own else 'default'}.gpus: {asked}"
        if asked < one.gpus:
            raise UserError(f"{key}, and the models of {one.name} need {one.gpus}; ask for as many, or leave gpus out")
        trains = ""
        if one.resources in ("round", "selftrain") and training_gpus(request, alone=False):
            trains = " (training uses them all)"
        if asked > one.usable_gpus and (one.usable_gpus or not trains):
            more = (
                ". data-parallel-size under models.*.serve.arguments uses more, and tasks share the work between jobs"
                if one.usable_gpus
                else ""
            )
            yield (
                f"{key}, and the models of {one.name} use {one.usable_gpus or 'none'}{trains}: "
                f"{'the others' if one.usable_gpus else 'they'} stay idle{more}"
            )


def _check_round(job: str, request: JobRequest) -> None:
    """A round's adapter is decided on before the next one samples; only `round` and `selftrain` do both."""
    count, before = request.config.rounds.count, request.round - 1
    if not 1 <= request.round <= count:
        raise UserError(f"--round {request.round}: rounds.count is {count}")
    if job in ("sample", "train") and before and not read_promotion(request.experiment.run.round(before)):
        raise UserError(f"--round {request.round}: round {before} is not decided yet; its promotion comes first")


def _check_inputs(job: str, request: JobRequest) -> None:
    experiment = request.experiment
    folder, shell = experiment.run.round(request.round), f"ratchet slurm {{}} {' '.join(experiment.arguments)}"
    index = request.config.index
    has_index = is_missing(index) or all((Path(part.path) / MANIFEST).exists() for part in index.built.values())
    if job == "sample" and not has_index:
        raise UserError(f"{index.path}: the index is not built; `{shell.format('index')}` builds it")
    if job == "rewards" and not TrajectoryStore(folder.trajectories).segments:
        raise UserError(f"{folder.trajectories}: no trajectories; `{shell.format('sample')}` samples them")
    if job == "train" and not request.config.members:
        if not folder.selection.exists():
            raise UserError(f"{folder.selection}: there is no selection; `{shell.format('rewards')}` writes it")
        if not kept_any(folder):
            raise UserError(f"{folder.selection}: it keeps no trajectory, so there is nothing to train on")
    if job == "evaluate" and not is_adapter(folder.adapter):
        raise UserError(f"{folder.adapter}: there is no adapter; `{shell.format('train')}` trains it")
    for name in request.config.evaluation.trained_controls if job == "evaluate" else ():
        if not (control := folder.control(name).adapter).exists():
            raise UserError(
                f"{control}: there is no adapter of the control {name} (evaluation.controls); "
                f"`{shell.format('round')}` trains it before it evaluates"
            )
