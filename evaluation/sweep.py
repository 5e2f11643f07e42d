"""The plan of a sweep: checkpoints x systems x question sets, each of which is an arm.

The checkpoints are the base model, the adapters of runs in the order of their training, and named ones.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ratchet.agents.core.system import models_of
from ratchet.core.config import Config, LeakageConfig, ModelConfig, SweepConfig, SystemConfig
from ratchet.core.config.evaluation import BASE
from ratchet.core.errors import UserError
from ratchet.core.plugins import short_name
from ratchet.core.records import Record
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.evaluation.arms import ArmPlan, ArmStatus, QuestionSet, arm_status, arm_store, question_set
from ratchet.evaluation.comparisons import primary_measure
from ratchet.inference.adapters import WEIGHTS, base_of, is_adapter
from ratchet.questions.load import same_question_key
from ratchet.questions.manifest import check_version
from ratchet.sampling.pool import policy_name
from ratchet.training.checkpoints import EvaluatedAdapters, checkpoints


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
        adapters = list(_of_run(RunFolder(Path(run))))
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


def _of_run(run: RunFolder) -> Iterator[Checkpoint]:
    """By round, the checkpoints within its training that differ from its adapter, then the adapter."""
    name = run.path.resolve().name
    for folder in run.rounds():
        if not is_adapter(folder.adapter):
            continue
        number, final = folder.number, policy_name(folder.adapter)
        origin = {"run": str(run.path), "round": number}
        within = EvaluatedAdapters(folder.training).all() | dict(checkpoints(folder.training))
        for step, path in sorted(within.items()):
            if step and is_adapter(path) and (policy := policy_name(path)) != final:
                step_name = f"{name}-round-{number}-step-{step}"
                yield Checkpoint(name=step_name, adapter=path, policy=policy, **origin, step=step)
        yield Checkpoint(name=f"{name}-round-{number}", adapter=folder.adapter, policy=final, **origin)


Stage = Literal["dev", "test", "grid"]
"""`grid`: as dev, every checkpoint is measured; nothing is chosen."""


@dataclass(frozen=True)
class SweepQuestionSet(QuestionSet):
    """A question set of the sweep, with its stage."""

    stage: Stage
    measure: str
    """The measure that is compared on this set."""


@dataclass(frozen=True)
class Cell:
    """One checkpoint with one system on one question set."""

    checkpoint: Checkpoint
    system: str
    asked: SweepQuestionSet
    arm: ArmPlan

    @property
    def name(self) -> str:
        return self.arm.name


@dataclass(frozen=True)
class Sweep:
    """The plan of a sweep: its checkpoints, systems and question sets."""

    config: Config
    checkpoints: Sequence[Checkpoint]
    systems: dict[str, SystemConfig]
    dev: Sequence[SweepQuestionSet]
    """Those on which every checkpoint is measured: dev's, or a grid's."""
    test: Sequence[SweepQuestionSet]

    @property
    def folder(self) -> Path:
        return self.config.folder / "sweep"

    @property
    def is_grid(self) -> bool:
        return bool(self.config.sweep.grid)

    def cells(self) -> list[Cell]:
        """The cells of every checkpoint, those of one next to each other: a server loads few adapters at a time."""
        return [
            self.cell(checkpoint.name, name, asked)
            for checkpoint in self.checkpoints
            for name in self.systems
            for asked in self.dev
        ]

    def cell(self, checkpoint: str, system: str, asked: SweepQuestionSet) -> Cell:
        group = [known.name for known in self.checkpoints].index(checkpoint)
        asking, config = self.checkpoints[group], self.systems[system]
        name, store = f"{checkpoint}/{system}/{asked.name}", arm_store(self.config, asked.name, config, asking.policy)
        arm = ArmPlan(name, config, asked, asking.adapter, asking.policy, store, asking.leak_checked, group)
        return Cell(asking, system, asked, arm)

    def base_of(self, cell: Cell) -> Cell:
        """The cell that this one is compared with: the same system on the base model."""
        return self.cell(BASE, cell.system, cell.asked)

    def status(self, cell: Cell) -> ArmStatus:
        return arm_status(self.config.evaluation, cell.arm)


def plan_sweep(config: Config) -> Sweep:
    """The sweep of a config. Raises UserError that names the key."""
    systems = config.sweep.systems or {short_name(config.system.name): config.system}
    grid, test = config.sweep.grid, config.sweep.test
    if grid:
        test = ()
    elif test is None:
        test = tuple(name for name in config.evaluation.question_sets if name not in config.sweep.dev)
    checkpoints = find_checkpoints(config.folder, config.sweep)
    _check_bases(checkpoints, {name: config.models[name] for name in models_of(systems.values())})
    stage: Stage = "grid" if grid else "dev"
    dev_sets = [_question_set(config, name, stage) for name in grid or config.sweep.dev]
    test_sets = [_question_set(config, name, "test") for name in test]
    for asked in test_sets:
        _check_apart(config.questions.leakage, dev_sets, asked)
    return Sweep(config, checkpoints, systems, dev_sets, test_sets)


def _check_bases(checkpoints: Sequence[Checkpoint], models: Mapping[str, ModelConfig]) -> None:
    """Warn of adapters that say that they were trained on another model than the one that plays the systems."""
    named = {Path(model.path).name.casefold(): name for name, model in models.items()}
    for checkpoint in checkpoints:
        base = base_of(checkpoint.adapter) if checkpoint.adapter else ""
        if base and Path(base).name.casefold() not in named:
            played = ", ".join(f"models.{name} is {model.path}" for name, model in models.items())
            print(f"warning: {checkpoint.adapter}: an adapter of {base}, and {played}", file=sys.stderr)


def _question_set(config: Config, name: str, stage: Stage) -> SweepQuestionSet:
    asked = question_set(config, name, f"sweep.{stage}:")
    measure = primary_measure(config, asked.questions)
    return SweepQuestionSet(asked.name, asked.title, asked.questions, asked.digest, stage, measure)


def _check_apart(modes: LeakageConfig, dev: Sequence[SweepQuestionSet], test: SweepQuestionSet) -> None:
    """Warn or raise UserError where test has questions of dev, whose numbers are optimistically biased."""
    known = {same_question_key(question.text) for asked in dev for question in asked.questions}
    both = sum(same_question_key(question.text) in known for question in test.questions)
    if not both or modes.questions == "off":
        return
    message = f"{both} of the {len(test.questions)} questions of {test.name} are in the sweep's dev sets as well"
    if modes.questions == "stop":
        raise UserError(f"sweep.test: {message}; choose on other questions, or set questions.leakage.questions=warn")
    print(f"warning: {message}", file=sys.stderr)
