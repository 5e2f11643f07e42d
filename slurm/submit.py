"""Submitting jobs: the options of sbatch, the environment of slurm/job.sh, and the submission or a script of it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.errors import UserError
from ratchet.core.escape import file_name
from ratchet.core.locks import disk_error
from ratchet.slurm.plan import Job
from ratchet.slurm.site import Resources, Site, resources_of

_HERE = Path(__file__).resolve().parent
SCRIPT = _HERE / "job.sh"
NODE_SCRIPT = _HERE / "node.sh"
_IMPORTED_FROM = Path(__file__).parents[2]
"""The folder that holds `ratchet`: src/ of a checkout."""
MAX_REQUEUES = 50
"""Restarts after which a job does not requeue itself; a site's `environment` can set RATCHET_MAX_REQUEUES."""


@dataclass(frozen=True)
class Submission:
    """The settings that all jobs of one command line share."""

    site: Site
    run: Path
    """The run folder; logs go to its folder `slurm`."""
    label: str
    """Distinguishes these jobs from others of the run, such as 'round-2'; may be empty."""
    options: tuple[str, ...] = ()
    """The user's options of sbatch, after all others."""

    @property
    def logs(self) -> Path:
        return self.run / "slurm"

    def job_name(self, job: Job) -> str:
        parts = [*self.run.parts[-2:], self.label, job.name]
        return ".".join(file_name(part) for part in parts if part)

    def log(self, job: Job, number: str) -> Path:
        return self.logs / f"{job.name}-{number}.out"

    def environment(self) -> dict[str, str]:
        """The variables of slurm/job.sh, all of them, so that none comes from the user's shell."""
        site = self.site
        return {
            "RATCHET_MODULES": " ".join(site.modules),
            "RATCHET_SETUP": site.setup,
            "RATCHET_STOP_SECONDS": str(site.stop_seconds),
            "RATCHET_MAX_REQUEUES": str(MAX_REQUEUES),
            **site.environment,
        }

    def command(self, job: Job, after: str = "") -> list[str]:
        """sbatch and all its arguments; `after`: the number of the job that this one waits for."""
        site, resources = self.site, resources_of(self.site, job.resources)
        gpus = job.gpus if resources.gpus is None else resources.gpus
        # % starts a placeholder in a log's name; %% is a percent sign.
        log = str(self.log(job, "%A_%a" if job.tasks else "%j").absolute())
        folder = str(self.logs.absolute())
        limit = f"%{resources.at_once}" if resources.at_once else ""
        named = {
            "--job-name": self.job_name(job),
            "--partition": resources.partition or site.partition,
            "--account": site.account,
            "--qos": site.qos,
            "--constraint": site.constraint,
            "--time": resources.time,
            "--nodes": str(resources.nodes),
            "--ntasks-per-node": "1",
            "--cpus-per-task": str(resources.cpus_beside(gpus)),
            "--mem": resources.memory_beside(gpus),
            "--array": f"0-{job.tasks - 1}{limit}" if job.tasks else "",
            "--dependency": f"{job.condition}:{after}" if job.after else "",
            "--signal": f"B:USR1@{site.signal_seconds}",
            "--output": folder.replace("%", "%%") + log.removeprefix(folder),
            "--chdir": str(Path.cwd()),
            "--export": "ALL",
        }
        options = [f"{option}={value}" for option, value in named.items() if value]
        # Otherwise a job whose dependency failed would wait for ever.
        options += ["--parsable", "--requeue", "--open-mode=append", "--kill-on-invalid-dep=yes"]
        options += shlex.split(site.gpu_option.format(count=gpus)) if gpus else []
        return [
            "sbatch",
            *options,
            *site.options,
            *resources.options,
            *self.options,
            str(SCRIPT),
            *self._on_nodes(resources, gpus),
            *self._run(job, gpus),
        ]

    def _on_nodes(self, resources: Resources, gpus: int) -> list[str]:
        if resources.nodes == 1:
            return []
        # srun does not take the CPUs of a task over from sbatch (SLURM 22.05 and later).
        counts = [
            f"--ntasks={resources.nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={resources.cpus_beside(gpus)}",
        ]
        return ["srun", *counts, "--kill-on-bad-exit=1", "bash", str(NODE_SCRIPT)]

    def _run(self, job: Job, gpus: int) -> list[str]:
        site, python = self.site, self.site.jobs_python
        command = [python if argument == sys.executable else argument for argument in job.command]
        if site.apptainer is None:
            return command
        here, image = str(Path.cwd()), site.apptainer
        binds = [f"--bind={folder}" for folder in dict.fromkeys((here, str(_HERE.parent), *image.binds))]
        nv = ["--nv"] if gpus else []
        found = f"--env=PYTHONPATH={_IMPORTED_FROM}"  # the image has the packages that it needs, not the code
        return ["apptainer", "exec", *nv, *binds, found, f"--pwd={here}", *image.options, image.image, *command]


def script_of(submission: Submission, jobs: Sequence[Job]) -> str:
    """Write a shell script that submits the jobs, to inspect them."""
    lines = [f"mkdir -p {shlex.quote(str(submission.logs.absolute()))}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in submission.environment().items()]
    for job in jobs:
        after = _variable(job.after) if job.after else ""
        command = [_quoted(argument, after) for argument in submission.command(job, f"@{after}@")]
        lines += ["", f"{_variable(job.name)}=$({' '.join(command)})"]
    return "\n".join(lines) + "\n"


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name) + "_job"


def _quoted(argument: str, after: str) -> str:
    """Quote an argument for the shell; the number of the previous job is a shell variable."""
    number = f"@{after}@"
    if after and argument.startswith("--dependency=") and argument.endswith(number):
        return shlex.quote(argument.removesuffix(number)) + f'"${{{after}%%;*}}"'
    return shlex.quote(argument)


def submit(submission: Submission, jobs: Sequence[Job], again: bool = False) -> dict[str, str]:
    """Submit the jobs; returns their numbers by name. UserError if one is already in the queue, unless `again`."""
    if not again:
        _refuse_queued(submission, jobs)
    try:
        submission.logs.mkdir(parents=True, exist_ok=True)  # SLURM fails a job whose log it cannot open
    except OSError as error:
        raise disk_error(submission.logs, error) from error
    environment = {**os.environ, **submission.environment()}
    numbers: dict[str, str] = {}
    for job in jobs:
        done = _slurm(submission.command(job, numbers.get(job.after, "")), environment)
        if done.returncode:
            so_far = f" Submitted before it: `scancel {' '.join(numbers.values())}` cancels them." if numbers else ""
            raise UserError(f"sbatch refused {job.name}: {done.stderr.strip()}.{so_far}")
        numbers[job.name] = done.stdout.strip().partition(";")[0]
        print(_line(submission, job, numbers), flush=True)
    print(f"watch:  squeue --jobs {','.join(numbers.values())}\ncancel: scancel {' '.join(numbers.values())}")
    return numbers


def _line(submission: Submission, job: Job, numbers: Mapping[str, str]) -> str:
    number = numbers[job.name]
    array = f", {job.tasks} tasks" if job.tasks else ""
    waits = {"afterok": "after", "afterany": "after the end of", "aftercorr": "task by task after"}[job.condition]
    after = f", {waits} {numbers[job.after]}" if job.after else ""
    return f"{number}  {job.name}{array}{after}; log {submission.log(job, number + ('_*' if job.tasks else ''))}"


def _refuse_queued(submission: Submission, jobs: Sequence[Job]) -> None:
    names = [submission.job_name(job) for job in jobs]
    listed = _slurm(["squeue", "--me", "--noheader", f"--name={','.join(names)}", "--format=%i %j"], dict(os.environ))
    if listed.returncode:
        raise UserError(f"squeue: {listed.stderr.strip()}")
    if lines := listed.stdout.strip().splitlines():
        number, _, name = lines[0].strip().partition(" ")
        raise UserError(
            f"{name} is in the queue already, as {number}: two jobs cannot write the same run. Cancel it "
            f"(`scancel {number.partition('_')[0]}`), or pass --again if it is another run of the same name"
        )


def _slurm(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(
            f"{command[0]}: cannot run ({error.strerror}); submit on a machine with SLURM, "
            "or inspect the jobs with --dry-run"
        ) from error
