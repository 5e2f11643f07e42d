"""The settings of a cluster: partitions, accounts, modules, resources. One strict YAML file, `--site FILE`.

The code contains no site's paths or names. `slurm/site.example.yaml` is a site file with comments.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from ratchet.core.config import Section
from ratchet.core.errors import UserError
from ratchet.core.parsing import parse, read_mapping

SECRET_WORDS = {"KEY", "KEYS", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS"}
CPUS_PER_GPU = 8
MEMORY_PER_GPU, MEMORY_WITHOUT_GPU = 64, 32
"""In units of 2^30 bytes, as sbatch's G."""


class Resources(Section):
    """The resources that one job requests."""

    time: str = "24:00:00"
    """The time limit. A job that reaches it requeues itself, so it need not cover all the work."""
    cpus: int | None = Field(None, gt=0)
    """The number of CPUs on each node. Default: 8 for each GPU there, and 8 without one."""
    memory: str | None = Field(None, pattern=r"^(\d+[KMGT])?$")
    """Memory on each node, such as 32G; empty: not requested. Default: 64G for each GPU there, and 32G without one."""
    nodes: int = Field(1, gt=0)
    """train: the number of nodes. All of them see the run folder; `gpus` are those of each node."""
    gpus: int | None = Field(None, ge=0)
    """The number of GPUs. Default: what the models of this job need; 0 where they run on CPUs or other machines."""
    tasks: int | None = Field(None, gt=0)
    """Jobs that share the work, as an array: index, sample and sweep. Default: 8 shards at a time for index, one job
    for sample, one for every cell of a sweep."""
    at_once: int | None = Field(None, gt=0)
    """The limit of tasks of an array that run at the same time."""
    partition: str = ""
    """A partition instead of the site's."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, after the site's."""

    @field_validator("time", mode="before")
    @classmethod
    def _quoted(cls, time: Any) -> Any:
        if isinstance(time, int):  # YAML reads 24:00:00 as a number of seconds, and SLURM a number as minutes
            raise ValueError("put the time in quotes, such as '24:00:00' or '2-00:00:00'")
        if isinstance(time, str) and not re.fullmatch(r"\d+-\d+(:\d+){0,2}|\d+(:\d+){0,2}", time):
            raise ValueError("expected a time such as '24:00:00' (hours) or '2-00:00:00' (days)")
        return time

    def cpus_beside(self, gpus: int) -> int:
        """The number of CPUs of a node on which the job has so many GPUs."""
        return self.cpus or CPUS_PER_GPU * max(gpus, 1)

    def memory_beside(self, gpus: int) -> str:
        """The memory of a node on which the job has so many GPUs, as sbatch takes it; may be empty."""
        return self.memory if self.memory is not None else f"{gpus * MEMORY_PER_GPU or MEMORY_WITHOUT_GPU}G"


class Jobs(Section):
    """Resources by job; an omitted key has the value of `default`, else the one here."""

    default: Resources = Resources()
    index: Resources = Resources(time="12:00:00", tasks=8)
    sample: Resources = Resources()
    rewards: Resources = Resources()
    train: Resources = Resources()
    evaluate: Resources = Resources()
    round: Resources = Resources()
    selftrain: Resources = Resources()
    sweep: Resources = Resources()
    merge: Resources = Resources(time="04:00:00", cpus=2, gpus=0)
    """Jobs that merge an array's results; they open no model."""


class Apptainer(Section):
    """The container image that jobs run in."""

    image: str
    """The .sif file. It contains the packages; the code is the checkout that the job is submitted from."""
    binds: tuple[str, ...] = ()
    """Further folders to mount, in the syntax of --bind; the checkout is always mounted."""
    options: tuple[str, ...] = ()
    """Further options of `apptainer exec`. --nv is added where a job has GPUs."""


class Site(Section):
    """The settings of a cluster for all jobs."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    gpu_option: str = "--gres=gpu:{count}"
    """The option that requests GPUs, such as --gres=gpu:a100:{count} or --gpus-per-node={count}."""
    options: tuple[str, ...] = ()
    """Further options of sbatch for all jobs."""
    jobs: Jobs = Jobs()
    modules: tuple[str, ...] = ()
    """Modules to load with `module load`, in this order."""
    setup: str = ""
    """Lines of shell to run before the command, such as: source .venv/bin/activate"""
    environment: dict[str, str] = Field(default={})
    """Variables for the jobs, such as caches: {HF_HOME: /scratch/me/hf}. Keys and tokens come from the environment that
    you submit from."""
    python: str = ""
    """The Python of the jobs. Default: the one that submits; in an image: python."""
    apptainer: Apptainer | None = None
    accelerate: str = ""
    """A config file of `accelerate launch` for training, such as configs/accelerate/fsdp.yaml."""
    signal_seconds: int = Field(300, ge=10, le=65535)
    """Seconds before its time limit at which a job gets a signal, stops and requeues itself."""

    @field_validator("gpu_option")
    @classmethod
    def _has_count(cls, option: str) -> str:
        if "{count}" not in option:
            raise ValueError("write {count} where the number of GPUs belongs, as in --gres=gpu:{count}")
        return option

    @field_validator("environment")
    @classmethod
    def _no_secrets(cls, environment: dict[str, str]) -> dict[str, str]:
        for name in environment:
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise ValueError(f"{name!r} cannot be the name of a variable")
            if SECRET_WORDS & set(name.upper().split("_")):
                raise ValueError(f"{name} looks like a secret; set it in the environment that you submit from instead")
        return environment

    @model_validator(mode="after")
    def _several_nodes_train(self) -> Site:
        for name in Jobs.model_fields:
            if name != "train" and resources_of(self, name).nodes > 1:
                raise ValueError(
                    f"jobs.{name}.nodes: only training runs over several nodes; share other work with tasks, and set "
                    "nodes under jobs.train alone"
                )
        return self

    @property
    def jobs_python(self) -> str:
        return self.python or ("python" if self.apptainer else sys.executable)

    @property
    def stop_seconds(self) -> int:
        """Seconds that a command may take to stop, which leaves time to requeue."""
        return max(self.signal_seconds - 60, self.signal_seconds // 2)


def resources_of(site: Site, job: str) -> Resources:
    """Return the resources of a job: our defaults, overridden by the site's `default`, then by its key for this job."""
    resources: Resources = Jobs.model_fields[job].default
    for name in (name for name in ("default", job) if name in site.jobs.model_fields_set):
        given: Resources = getattr(site.jobs, name)
        resources = resources.model_copy(update={key: getattr(given, key) for key in given.model_fields_set})
    return resources


def load_site(path: Path | None) -> Site:
    """Read a site file; UserError. Without one, SLURM's own defaults apply."""
    if path is None:
        return Site()
    site = parse(Site, read_mapping(path), str(path))
    wanted = {"accelerate": site.accelerate, "apptainer.image": site.apptainer.image if site.apptainer else ""}
    for key, file in wanted.items():
        if file and not Path(file).exists():
            raise UserError(f"{path}: {key}: {file} does not exist")
    return site
