"""The sections `evaluation` (what the adapter is measured on and against) and `sweep`."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, field_validator, model_validator

from ratchet.core.config.questions import SplitConfig
from ratchet.core.config.section import PathText, ScoreText, Section
from ratchet.core.config.system import SystemConfig

Control = Literal["base-again", "random", "gold"]
TrainedControl = Literal["random", "gold"]
FINAL = "test"
"""The split of `questions` that is evaluated."""


class EvaluationConfig(Section):
    """The questions and baselines that the adapter is measured on and against."""

    temperature: float = Field(0.1, ge=0)
    """Temperature of all roles."""
    samples: int = Field(1, gt=0, le=100_000)
    """Number of trajectories per question, whose mean counts."""
    scores: tuple[ScoreText, ...] = ()
    """Scores that are computed. Default: those of `rewards.weights`."""
    baselines: dict[str, SystemConfig] = Field(default={})
    """Further systems that are run on the base model, by their name in the table."""
    adapters: dict[str, PathText] = Field(default={})
    """Adapter folders of baselines that were trained on the same questions in another run, by the baseline's name."""
    controls: tuple[Control, ...] = ()
    """[Further arms](../guides/rounds-and-sweeps.md#evaluation) that say what chance, selection and gold answers are
    worth."""
    benchmarks: dict[str, SplitConfig] = Field(default={})
    """Further question sets over the same index, by their name in the table. Every arm is run on all of them."""
    skip: dict[str, tuple[str, ...]] = Field(default={})
    """Question sets that a baseline is not run on, by the baseline's name."""

    @property
    def question_sets(self) -> list[str]:
        """The question sets that are evaluated by default: the test questions and the benchmarks."""
        return [FINAL, *self.benchmarks]

    @property
    def trained_controls(self) -> tuple[TrainedControl, ...]:
        """The controls that are adapters of their own."""
        return tuple(name for name in get_args(TrainedControl) if name in self.controls)


BASE = "base"
"""The checkpoint that is no adapter: the base model, which is in every sweep."""


class SweepConfig(Section):
    """Checkpoints, systems and question sets of `ratchet sweep`."""

    checkpoints: dict[str, PathText] = Field(default={})
    """Adapter folders by a name."""
    runs: tuple[PathText, ...] | None = None
    """Run folders whose adapters, those within training too, are checkpoints. Default: the config's own run, if
    `checkpoints` is empty."""
    systems: dict[str, SystemConfig] = Field(default={})
    """Systems by a name. Default: the config's own."""
    dev: tuple[str, ...] = ("dev",)
    """Question sets on which the best checkpoint is chosen: `dev`, `train`, or names of `evaluation.benchmarks`."""
    test: tuple[str, ...] | None = None
    """Question sets on which only the chosen checkpoints are measured. Default: `test` and all benchmarks that are not
    under `dev`."""
    grid: tuple[str, ...] = Field((), exclude_if=lambda grid: not grid)
    """Question sets on which every checkpoint is measured, in place of `dev` and `test`: nothing is chosen."""

    @field_validator("checkpoints", "systems")
    @classmethod
    def _check_names(cls, named: dict[str, object]) -> dict[str, object]:
        for name in named:
            if "/" in name or not name.strip():
                raise ValueError(f"{name!r} cannot be a name here, as names of cells are divided by /; choose another")
        return named

    @model_validator(mode="after")
    def _check(self) -> SweepConfig:
        if BASE in self.checkpoints:
            raise ValueError(f"checkpoints: {BASE!r} is the base model; choose another name")
        if self.grid and {"dev", "test"} & self.model_fields_set:
            raise ValueError("grid: it takes the place of dev and test; leave them out, or leave out grid")
        for key, names in (("dev", self.dev), ("test", self.test or ()), ("grid", self.grid)):
            if len(set(names)) < len(names):
                raise ValueError(f"{key}: a question set is named twice")
        if not self.dev:
            raise ValueError("dev: name at least one question set to choose on")
        if both := set(self.dev) & set(self.test or ()):
            raise ValueError(f"test: {', '.join(sorted(both))} is under dev too; what chooses cannot test the choice")
        return self
