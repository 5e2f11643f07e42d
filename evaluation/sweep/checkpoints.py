"""The checkpoints of a sweep: the base model, the adapters of runs in the order they came about, and named adapters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evaluation.sweep.settings import BASE, SweepConfig, check_names
from inference.adapters import WEIGHTS
from ratchet.config import Config
from ratchet.errors import UserError, did_you_mean
from ratchet.runfolder import RoundFolder, RunFolder
from sampling.pool import policy_name

WITHIN = 0.9
"""How much of a round the checkpoints within it take up on a curve; its adapter, one of them, stands at its end."""


@dataclass(frozen=True)
class Checkpoint:
    name: str
    adapter: Path | None = None
    """None: the base model."""
    policy: str = BASE
    """'base', or the adapter's digest."""
    run: str = ""
    """The run folder that it came about in; empty for a named adapter."""
    round: int = 0
    step: int | None = None
    """Of a checkpoint within a round's training; None for the round's adapter."""
    place: float = 0.0
    """Where it stands on a learning curve: rounds, and the part of the last one that was trained."""

    @property
    def leak_checked(self) -> Path | None:
        """The folder that says which questions it was trained on: for a checkpoint within a round, the round's."""
        if self.step is None or self.adapter is None:
            return self.adapter
        return RoundFolder(self.adapter.parent.parent).adapter


def find_checkpoints(config: Config, settings: SweepConfig, systems: int) -> list[Checkpoint]:
    """Base first. An adapter that is there twice under other names is taken once. Raises UserError."""
    found = [Checkpoint(BASE)]
    runs = settings.runs if settings.runs is not None else () if settings.checkpoints else (config.run,)
    for run in runs:
        made = list(_of_run(RunFolder(Path(run)), settings.steps))
        if not made and (settings.runs is not None or systems == 1):
            raise UserError(f"sweep.runs: {run} has no adapter (round-N/adapter) yet; train one, or leave it out")
        found += made
    for name, path in settings.checkpoints.items():
        if not is_adapter(Path(path)):
            raise UserError(f"sweep.checkpoints.{name}: {path} is no adapter folder (adapter_config.json, {WEIGHTS})")
        one = Checkpoint(name, Path(path), policy_name(Path(path)))
        if twin := next((other for other in found if other.policy == one.policy), None):
            raise UserError(f"sweep.checkpoints.{name}: {path} is the same adapter as {twin.name!r}; leave one out")
        found.append(one)
    names = [one.name for one in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"sweep: {', '.join(twice)} would name two checkpoints each; give those of one run names of their own "
            "under sweep.checkpoints"
        )
    found = _once(found)
    names = [one.name for one in found]
    if settings.base.checkpoint not in names:
        wrong = settings.base.checkpoint
        raise UserError(f"sweep.base.checkpoint: {wrong!r} is no checkpoint of this sweep{did_you_mean(wrong, names)}")
    return found


def is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").exists() and (folder / WEIGHTS).exists()


def _of_run(run: RunFolder, steps: bool) -> Iterator[Checkpoint]:
    """Round by round: the checkpoints within it, then its adapter, which one of them may equal."""
    name = run.path.resolve().name
    check_names("sweep.runs", [name])
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
    """Adapters that training left, by step: its checkpoints, and the best one of a step that has none."""
    found = {}
    for kind in ("best", "checkpoint"):
        for path in training.glob(f"{kind}-*"):
            step = path.name.removeprefix(f"{kind}-")
            if step.isdigit() and int(step) > 0 and is_adapter(path):
                found[int(step)] = path
    return found


def _once(found: list[Checkpoint]) -> list[Checkpoint]:
    seen: dict[str, Checkpoint] = {}
    for one in found:
        seen.setdefault(one.policy, one)
    return list(seen.values())
