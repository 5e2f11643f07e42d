"""The checkpoints of a sweep: the base model, the adapters of runs in the order of their training, and named ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inference.adapters import WEIGHTS, is_adapter
from ratchet.config import SweepConfig
from ratchet.config.sweep import BASE, valid_name
from ratchet.errors import UserError, did_you_mean
from ratchet.runfolder import RoundFolder, RunFolder
from sampling.pool import policy_name

WITHIN = 0.9
"""The part of a round that the checkpoints within it cover on a curve, whose end is the round's adapter."""


@dataclass(frozen=True)
class Checkpoint:
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
    place: float = 0.0
    """The position on a learning curve, in rounds: whole ones, and the trained part of the last one."""

    @property
    def leak_checked(self) -> Path | None:
        """The folder that records the adapter's training questions: for a checkpoint within a round, the round's."""
        if self.step is None or self.adapter is None:
            return self.adapter
        return RoundFolder(self.adapter.parent.parent).adapter


def find_checkpoints(own_run: Path, settings: SweepConfig, systems: int) -> list[Checkpoint]:
    """All checkpoints, base first; an adapter that several runs have is taken once. Raises UserError.

    `own_run`: the run folder that is searched by default; `systems`: the number of systems of the sweep.
    """
    found = [Checkpoint(BASE)]
    runs = settings.runs if settings.runs is not None else () if settings.checkpoints else (own_run,)
    for run in runs:
        adapters = list(_of_run(RunFolder(Path(run)), settings.steps))
        if not adapters and (settings.runs is not None or systems == 1):
            raise UserError(f"sweep.runs: {run} has no adapter (round-N/adapter) yet; train one, or remove this run")
        found += adapters
    for name, path in settings.checkpoints.items():
        if not is_adapter(Path(path)):
            raise UserError(f"sweep.checkpoints.{name}: {path} is no adapter folder (adapter_config.json, {WEIGHTS})")
        one = Checkpoint(name, Path(path), policy_name(Path(path)))
        if duplicate := next((other for other in found if other.policy == one.policy), None):
            raise UserError(
                f"sweep.checkpoints.{name}: {path} is the same adapter as {duplicate.name!r}; remove one of them"
            )
        found.append(one)
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"sweep: {', '.join(twice)} would name two checkpoints each; give those of one run names of their own "
            "under sweep.checkpoints"
        )
    found = _unique(found)
    names = [one.name for one in found]
    if settings.base.checkpoint not in names:
        wrong = settings.base.checkpoint
        raise UserError(f"sweep.base.checkpoint: {wrong!r} is no checkpoint of this sweep{did_you_mean(wrong, names)}")
    return found


def check_name(key: str, name: str) -> None:
    """Raises UserError for a name that cannot be a folder's."""
    if not valid_name(name):
        raise UserError(f"{key}.{name}: this name cannot be a folder's here; choose another")


def _of_run(run: RunFolder, steps: bool) -> Iterator[Checkpoint]:
    """By round, the checkpoints within its training that differ from its adapter, then the adapter."""
    name = run.path.resolve().name
    check_name("sweep.runs", name)
    for folder in run.rounds():
        number = folder.number
        if not is_adapter(folder.adapter):
            continue
        final = policy_name(folder.adapter)
        within = _steps(folder.training) if steps else {}
        last = max(within, default=0)
        for step, path in sorted(within.items()):
            policy = policy_name(path)
            if policy != final:
                yield Checkpoint(
                    f"{name}-round-{number}-step-{step}",
                    path,
                    policy,
                    str(run.path),
                    number,
                    step,
                    number - 1 + WITHIN * step / last,
                )
        yield Checkpoint(f"{name}-round-{number}", folder.adapter, final, str(run.path), number, None, float(number))


def _steps(training: Path) -> dict[int, Path]:
    """Adapters in a training folder by step: the evaluated ones, and the checkpoints that training resumes from."""
    found = {}
    for kind in ("evaluated", "checkpoint"):
        for path in training.glob(f"{kind}-*"):
            step = path.name.removeprefix(f"{kind}-")
            if step.isdigit() and int(step) > 0 and is_adapter(path):
                found[int(step)] = path
    return found


def _unique(found: list[Checkpoint]) -> list[Checkpoint]:
    seen: dict[str, Checkpoint] = {}
    for one in found:
        seen.setdefault(one.policy, one)
    return list(seen.values())
