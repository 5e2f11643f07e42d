"""The cells of a sweep, a checkpoint x system x question set each, and how much of each is on disk.

    sweep/cells/<checkpoint>/<system>/<set>/           trajectories, one JSONL segment
    sweep/cells/<checkpoint>/<system>/<set>/scores/    their scores
    sweep/cells/<checkpoint>/<system>/<set>.json       which trajectories make up the cell, when all are there

A cell has folders of its own, so any number of processes may work on different cells of one sweep at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from agents.core.dialogues import Setting
from evaluation.arms import split_of, splits_of, title_of
from evaluation.measures.measures import Scores
from evaluation.results import primary_measure
from evaluation.sweep.checkpoints import Checkpoint, find_checkpoints
from evaluation.sweep.settings import SweepConfig, check_names, sweep_of
from questions.leakage import normalised
from questions.load import load_split
from ratchet.config import Config, SystemConfig
from ratchet.errors import UserError
from ratchet.files import read_record
from ratchet.records import Question, Record, Trajectory, content_key
from ratchet.runfolder import MACHINE
from rewards.store import stored_scores
from sampling.store import TrajectoryStore

Stage = Literal["dev", "test"]
State = Literal["done", "part", "missing"]


@dataclass(frozen=True)
class QuestionSet:
    name: str
    title: str
    stage: Stage
    questions: Sequence[Question]
    digest: str
    measure: str
    """What is compared on it."""


@dataclass(frozen=True)
class Cell:
    checkpoint: Checkpoint
    system_name: str
    system: SystemConfig
    asked: QuestionSet
    sweep: Path

    @property
    def name(self) -> str:
        return f"{self.checkpoint.name}/{self.system_name}/{self.asked.name}"

    @property
    def folder(self) -> Path:
        return self.sweep / "cells" / self.checkpoint.name / self.system_name / self.asked.name

    @property
    def scores(self) -> Path:
        return self.folder / "scores"

    @property
    def record(self) -> Path:
        return self.folder.parent / f"{self.asked.name}.json"


class CellRecord(Record):
    """Which stored trajectories make up a cell: a folder may also hold those of other settings."""

    plan: str
    """`Sweep.plan_of`: with other settings the cell is to be done again."""
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """What is on disk of a cell."""

    state: State
    note: str = ""
    trajectories: Sequence[Trajectory] = ()
    scores: Scores = field(default_factory=dict)
    failed: int = 0
    """Trajectories that a fault ended: they count in the tables, and are tried again when the cell is run again."""


@dataclass(frozen=True)
class Sweep:
    config: Config
    settings: SweepConfig
    checkpoints: Sequence[Checkpoint]
    systems: dict[str, SystemConfig]
    dev: Sequence[QuestionSet]
    test: Sequence[QuestionSet]

    @property
    def folder(self) -> Path:
        return self.config.folder / "sweep"

    def cells(self) -> list[Cell]:
        """Those that choose. Cells of one checkpoint are next to each other: a server loads few adapters at a time."""
        return [
            Cell(checkpoint, name, system, asked, self.folder)
            for checkpoint in self.checkpoints
            for name, system in self.systems.items()
            for asked in self.sets_of(name, self.dev)
        ]

    def sets_of(self, system: str, sets: Sequence[QuestionSet]) -> list[QuestionSet]:
        return [asked for asked in sets if asked.name not in self.settings.skip.get(system, ())]

    def cell(self, checkpoint: str, system: str, asked: QuestionSet) -> Cell:
        found = next(one for one in self.checkpoints if one.name == checkpoint)
        return Cell(found, system, self.systems[system], asked, self.folder)

    def base_of(self, cell: Cell) -> Cell:
        """What the cell's differences are against; itself for that one."""
        base = self.settings.base
        return self.cell(base.checkpoint, base.system or cell.system_name, cell.asked)

    def setting(self, cell: Cell) -> Setting:
        evaluation, adapter = self.config.evaluation, cell.checkpoint.adapter
        return Setting(
            temperature=evaluation.temperature,
            frozen_temperature=evaluation.temperature,
            top_p=evaluation.top_p,
            adapter=None if adapter is None else str(adapter),
            policy=cell.checkpoint.policy,
            scope=f"sweep/{cell.asked.name}/{cell.system_name}/{cell.checkpoint.name}",  # no memory is shared
        )

    @cached_property
    def _common(self) -> str:
        """What every cell depends on. A model or index that is changed in its own folder does not show here."""
        evaluation = self.config.evaluation
        models = {name: model.model_dump(mode="json", exclude=MACHINE) for name, model in self.config.models.items()}
        world = self.config.model_dump(mode="json", include={"index", "sources", "memory", "embedder", "seed"})
        return content_key("sweep", models, world, evaluation.samples, evaluation.temperature, evaluation.top_p)

    def plan_of(self, cell: Cell) -> str:
        """Digest of all that a cell's trajectories depend on."""
        return content_key(self._common, cell.system, cell.checkpoint.policy, cell.asked.digest)

    def look(self, cell: Cell) -> Seen:
        """How much of a cell is there, without a model."""
        record = read_record(cell.record, CellRecord, "delete it and run the sweep again: trajectories are kept")
        if record is None or record.plan != self.plan_of(cell):
            begun = any(path.stat().st_size for path in cell.folder.glob("*.jsonl"))
            return Seen("part", "not all sampled") if begun else Seen("missing")
        found = TrajectoryStore(cell.folder).load(record.keys)
        if gone := len(record.keys) - len(found):
            return Seen("part", f"{gone} of {len(record.keys)} trajectories are gone")
        names = self.config.evaluation.scores
        scores = stored_scores(cell.scores, set(record.keys))
        if lacking := sum((key, name) not in scores for key in record.keys for name in names):
            return Seen("part", f"{lacking} of {len(record.keys) * len(names)} scores are missing", found, scores)
        failed = sum(trajectory.status == "failed" for trajectory in found)
        return Seen("done", f"{failed} failed" if failed else "", found, scores, failed)


def plan_sweep(config: Config) -> Sweep:
    """The sweep of a config. Raises UserError that names the key."""
    settings = sweep_of(config)
    systems = settings.systems or {config.system.name: config.system}
    test = settings.test
    if test is None:
        test = tuple(name for name in splits_of(config) if name not in settings.dev)
    for name, left_out in settings.skip.items():
        if unknown := [one for one in left_out if one not in (*settings.dev, *test)]:
            raise UserError(f"sweep.skip.{name}: {', '.join(unknown)} is neither under dev nor under test")
        if set(settings.dev) <= set(left_out):
            raise UserError(f"sweep.skip.{name}: leaves no dev set to choose a checkpoint on")
    if (base := settings.base.system) and settings.skip.get(base):
        raise UserError(f"sweep.skip.{base}: differences are against this system, so it runs on every set")
    checkpoints = find_checkpoints(config, settings, len(systems))
    dev_sets = [_question_set(config, settings, name, "dev") for name in settings.dev]
    test_sets = [_question_set(config, settings, name, "test") for name in test]
    for asked in test_sets:
        _check_apart(config, dev_sets, asked)
    return Sweep(config, settings, checkpoints, systems, dev_sets, test_sets)


def _question_set(config: Config, settings: SweepConfig, name: str, stage: Stage) -> QuestionSet:
    check_names(f"sweep.{stage}", [name])
    loaded = load_split(split_of(config, name, f"sweep.{stage}:"), config.seed)
    measure = settings.measure or primary_measure(loaded.questions, config.evaluation.scores)
    return QuestionSet(name, title_of(config, name), stage, loaded.questions, loaded.digest, measure)


def _check_apart(config: Config, dev: Sequence[QuestionSet], test: QuestionSet) -> None:
    """What chose a checkpoint says nothing new about it."""
    mode = config.questions.leakage.questions
    known = {normalised(question.text) for asked in dev for question in asked.questions}
    both = sum(normalised(question.text) in known for question in test.questions)
    if not both or mode == "off":
        return
    message = f"{both} of the {len(test.questions)} questions of {test.name} are in the sweep's dev sets as well"
    if mode == "stop":
        raise UserError(f"sweep.test: {message}; choose on other questions, or set questions.leakage.questions=warn")
    print(f"warning: {message}", file=sys.stderr)
