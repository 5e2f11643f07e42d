"""The checkpoints of a sweep: the base model, the adapters of runs in the order of their training, and named ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ratchet.core.config import SweepConfig
from ratchet.core.config.sweep import BASE
from ratchet.core.errors import UserError
from ratchet.core.records import Record
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.inference.adapters import WEIGHTS, is_adapter
from ratchet.questions.manifest import check_version
from ratchet.sampling.pool import policy_name


class Checkpoint(Record):
    """The base model or an adapter, with the run and the step that it is from."""

    name: str
    adapter: Path | None = None
    """The adapter's folder; None for the base model."""
    policy: str = BASE
    """'base', or the adapter's digest."""
    run: str = ""
    """The run folder that trained the adapter; empty for a named one."""
    round: int = 0
    step: int | None = None
    """The training step of a checkpoint within a round; None for the round's adapter."""

    @property
    def leak_checked(self) -> Path | None:
        """The folder that records the adapter's training questions: for a checkpoint within a round, the round's."""
        if self.step is None or self.adapter is None:
            return self.adapter
        return RoundFolder(self.adapter.parent.parent).adapter


def find_checkpoints(own_run: Path, sweep: SweepConfig) -> list[Checkpoint]:
    """All checkpoints, base first; an adapter that several runs have is taken once. Raises UserError.

    `own_run`: the run folder that is searched where the config names neither runs nor checkpoints.
    """
    checkpoints = [Checkpoint(name=BASE)]
    runs = sweep.runs if sweep.runs is not None else () if sweep.checkpoints else (own_run,)
    for run in runs:
        check_version(RunFolder(Path(run)))
        adapters = list(_of_run(RunFolder(Path(run)), sweep.steps))
        if not adapters and (sweep.runs is not None or len(sweep.systems) < 2):
            raise UserError(f"sweep.runs: {run} has no adapter (round-N/adapter) yet; train one, or remove this run")
        checkpoints += adapters
    for name, path in sweep.checkpoints.items():
        if not is_adapter(Path(path)):
            raise UserError(f"sweep.checkpoints.{name}: {path} is no adapter folder (adapter_config.json, {WEIGHTS})")
        named = Checkpoint(name=name, adapter=Path(path), policy=policy_name(Path(path)))
        if duplicate := next((other for other in checkpoints if other.policy == named.policy), None):
            raise UserError(
                f"sweep.checkpoints.{name}: {path} is the same adapter as {duplicate.name!r}; remove one of them"
            )
        checkpoints.append(named)
    if twice := sorted(name for name, count in Counter(known.name for known in checkpoints).items() if count > 1):
        raise UserError(
            f"sweep: {', '.join(twice)} would name two checkpoints each; give those of one run names of their own "
            "under sweep.checkpoints"
        )
    unique: dict[str, Checkpoint] = {}
    for checkpoint in checkpoints:
        unique.setdefault(checkpoint.policy, checkpoint)
    return list(unique.values())


def _of_run(run: RunFolder, steps: bool) -> Iterator[Checkpoint]:
    """By round, the checkpoints within its training that differ from its adapter, then the adapter."""
    name = run.path.resolve().name
    for folder in run.rounds():
        if not is_adapter(folder.adapter):
            continue
        number, final = folder.number, policy_name(folder.adapter)
        origin = {"run": str(run.path), "round": number}
        within = _steps(folder.training) if steps else {}
        for step, path in sorted(within.items()):
            if (policy := policy_name(path)) != final:
                step_name = f"{name}-round-{number}-step-{step}"
                yield Checkpoint(name=step_name, adapter=path, policy=policy, **origin, step=step)
        yield Checkpoint(name=f"{name}-round-{number}", adapter=folder.adapter, policy=final, **origin)


def _steps(training: Path) -> dict[int, Path]:
    """Adapters in a training folder by step: the evaluated ones, and the checkpoints that training resumes from."""
    adapters = {}
    for kind in ("evaluated", "checkpoint"):
        for path in training.glob(f"{kind}-*"):
            step = path.name.removeprefix(f"{kind}-")
            if step.isdigit() and int(step) > 0 and is_adapter(path):
                adapters[int(step)] = path
    return adapters
