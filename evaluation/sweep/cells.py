"""The cells of a sweep: a checkpoint x system x question set each, which is an arm with its place in the sweep."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ratchet.core.config import Config, LeakageConfig, SystemConfig
from ratchet.core.config.sweep import BASE
from ratchet.core.errors import UserError
from ratchet.core.plugins import short_name
from ratchet.evaluation.arm_folders import arm_store, question_set
from ratchet.evaluation.arms import ArmPlan, ArmStatus, arm_status
from ratchet.evaluation.comparisons import primary_measure
from ratchet.evaluation.question_sets import QuestionSet
from ratchet.evaluation.sweep.checkpoints import Checkpoint, find_checkpoints
from ratchet.questions.load import same_question_key

Stage = Literal["dev", "test"]


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
    """The system's name in the sweep."""
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
    test: Sequence[SweepQuestionSet]

    @property
    def folder(self) -> Path:
        return self.config.folder / "sweep"

    def cells(self) -> list[Cell]:
        """The cells on dev. Those of one checkpoint are next to each other: a server loads few adapters at a time."""
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
        """How much of a cell is on disk, without opening a model."""
        return arm_status(self.config.evaluation, cell.arm)


def plan_sweep(config: Config) -> Sweep:
    """The sweep of a config. Raises UserError that names the key."""
    systems = config.sweep.systems or {short_name(config.system.name): config.system}
    test = config.sweep.test
    if test is None:
        test = tuple(name for name in config.evaluation.question_sets if name not in config.sweep.dev)
    checkpoints = find_checkpoints(config.folder, config.sweep)
    dev_sets = [_question_set(config, name, "dev") for name in config.sweep.dev]
    test_sets = [_question_set(config, name, "test") for name in test]
    for asked in test_sets:
        _check_apart(config.questions.leakage, dev_sets, asked)
    return Sweep(config, checkpoints, systems, dev_sets, test_sets)


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
