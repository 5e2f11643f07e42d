"""The cells of a sweep: a checkpoint x system x question set each, which is an arm with its place in the sweep."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evaluation.arms import ArmPlan, ArmSettings, ArmStatus, arm_status
from evaluation.question_sets import QuestionSet
from evaluation.results import primary_measure
from evaluation.sweep.checkpoints import Checkpoint, check_name, find_checkpoints
from questions.leakage import normalise_words
from ratchet.config import LeakageConfig, SweepConfig, SystemConfig
from ratchet.errors import UserError
from ratchet.plugins import short_name

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
    system_name: str
    asked: SweepQuestionSet
    arm: ArmPlan

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def system(self) -> SystemConfig:
        return self.arm.system


@dataclass(frozen=True)
class Sweep:
    """The plan of a sweep: its checkpoints, systems and question sets."""

    arms: ArmSettings
    settings: SweepConfig
    checkpoints: Sequence[Checkpoint]
    systems: dict[str, SystemConfig]
    dev: Sequence[SweepQuestionSet]
    test: Sequence[SweepQuestionSet]

    @property
    def folder(self) -> Path:
        return self.arms.run / "sweep"

    def cells(self) -> list[Cell]:
        """The cells on dev. Those of one checkpoint are next to each other: a server loads few adapters at a time."""
        return [
            self.cell(checkpoint.name, name, asked)
            for checkpoint in self.checkpoints
            for name in self.systems
            for asked in self.sets_of(name, self.dev)
        ]

    def sets_of(self, system: str, sets: Sequence[SweepQuestionSet]) -> list[SweepQuestionSet]:
        return [asked for asked in sets if asked.name not in self.settings.skip.get(system, ())]

    def cell(self, checkpoint: str, system: str, asked: SweepQuestionSet) -> Cell:
        group = [known.name for known in self.checkpoints].index(checkpoint)
        asking = self.checkpoints[group]
        arm = ArmPlan(
            f"{checkpoint}/{system}/{asked.name}",
            self.systems[system],
            asked,
            asking.adapter,
            asking.policy,
            self.arms.store(asked.name, self.systems[system], asking.policy),
            asking.leak_checked,
            group,
        )
        return Cell(asking, system, asked, arm)

    def base_of(self, cell: Cell) -> Cell:
        """The cell that this one is compared with; for that one itself."""
        base = self.settings.base
        return self.cell(base.checkpoint, base.system or cell.system_name, cell.asked)

    def status(self, cell: Cell) -> ArmStatus:
        """How much of a cell is on disk, without opening a model."""
        return arm_status(self.arms.evaluation, cell.arm)


def plan_sweep(arms: ArmSettings, settings: SweepConfig) -> Sweep:
    """The sweep of a config. Raises UserError that names the key."""
    systems = settings.systems or {short_name(arms.system.name): arms.system}
    test = settings.test
    if test is None:
        test = tuple(name for name in arms.evaluation.question_sets if name not in settings.dev)
    for name, left_out in settings.skip.items():
        if unknown := [one for one in left_out if one not in (*settings.dev, *test)]:
            raise UserError(f"sweep.skip.{name}: {', '.join(unknown)} is under neither dev nor test")
        if set(settings.dev) <= set(left_out):
            raise UserError(f"sweep.skip.{name}: leaves no dev set to choose a checkpoint on")
    if (base := settings.base.system) and settings.skip.get(base):
        raise UserError(f"sweep.skip.{base}: differences are against this system, so it has to run on every set")
    checkpoints = find_checkpoints(arms.run, settings, len(systems))
    dev_sets = [_question_set(arms, settings, name, "dev") for name in settings.dev]
    test_sets = [_question_set(arms, settings, name, "test") for name in test]
    for asked in test_sets:
        _check_apart(arms.questions.leakage, dev_sets, asked)
    return Sweep(arms, settings, checkpoints, systems, dev_sets, test_sets)


def _question_set(arms: ArmSettings, settings: SweepConfig, name: str, stage: Stage) -> SweepQuestionSet:
    check_name(f"sweep.{stage}", name)
    asked = arms.question_set(name, f"sweep.{stage}:")
    keep = arms.rewards.select.keep_status
    measure = settings.measure or primary_measure(asked.questions, arms.evaluation.scores, keep)
    return SweepQuestionSet(asked.name, asked.title, asked.questions, asked.digest, stage, measure)


def _check_apart(modes: LeakageConfig, dev: Sequence[SweepQuestionSet], test: SweepQuestionSet) -> None:
    """Warn or raise UserError where test has questions of dev, whose numbers are optimistically biased."""
    mode = modes.questions
    known = {normalise_words(question.text) for asked in dev for question in asked.questions}
    both = sum(normalise_words(question.text) in known for question in test.questions)
    if not both or mode == "off":
        return
    message = f"{both} of the {len(test.questions)} questions of {test.name} are in the sweep's dev sets as well"
    if mode == "stop":
        raise UserError(f"sweep.test: {message}; choose on other questions, or set questions.leakage.questions=warn")
    print(f"warning: {message}", file=sys.stderr)
