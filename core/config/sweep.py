"""The section `sweep`: checkpoints, systems and question sets of `ratchet sweep`.

    sweep:
      runs: [runs/demo]                       # every round's adapter, and the checkpoints within its training
      checkpoints: {other: adapters/other}    # adapters from elsewhere, by a name
      dev: [dev]                              # the best checkpoint is chosen on these
      test: [test]                            # and measured on these, once

Without this section: the config's own run, its own system, dev, and the question sets of `ratchet evaluate`.
"""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from ratchet.core.config.paths import PathText
from ratchet.core.config.section import Section
from ratchet.core.config.system import SystemConfig

BASE = "base"
"""The checkpoint that is no adapter: the base model, which is in every sweep."""


class SweepConfig(Section):
    """Checkpoints, systems and question sets of `ratchet sweep`."""

    checkpoints: dict[str, PathText] = Field(default={})
    """Adapter folders by a name."""
    runs: tuple[PathText, ...] | None = None
    """Run folders whose adapters are all checkpoints. Default: the config's own run, if `checkpoints` is empty."""
    steps: bool = True
    """Include the checkpoints within each round's training (`round-N/training`)."""
    systems: dict[str, SystemConfig] = Field(default={})
    """Systems by a name. Default: the config's own system."""
    dev: tuple[str, ...] = ("dev",)
    """Question sets on which the best checkpoint is chosen: `dev`, `train`, or names of `evaluation.benchmarks`."""
    test: tuple[str, ...] | None = None
    """Question sets on which only the chosen checkpoints are measured. Default: `test` and all benchmarks, except those
    under `dev`."""

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
        for key, names in (("dev", self.dev), ("test", self.test or ())):
            if len(set(names)) < len(names):
                raise ValueError(f"{key}: a question set is named twice")
        if not self.dev:
            raise ValueError("dev: name at least one question set to choose on")
        if both := set(self.dev) & set(self.test or ()):
            raise ValueError(f"test: {', '.join(sorted(both))} is under dev too; what chooses cannot test the choice")
        return self
