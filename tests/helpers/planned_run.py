"""A run that is planned and not run: its config, and the stages that it comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.core.config import Config
from ratchet.rounds.stages import ExperimentRun, Stage, stages_of
from tests.helpers.configs import SPLITS, config_values


def experiment(folder: Path, accelerate: str | None = None, **changes: Any) -> ExperimentRun:
    for split in SPLITS:
        (folder / f"{split}.jsonl").write_text('{"id": "q", "text": "Who?"}\n')
    models = {"agent": {"path": "some/model", "engine": "local", "device": "cpu"}}
    config = Config.model_validate(config_values(folder, models=models) | changes)
    return ExperimentRun(config, ("--config", "c.yaml"), accelerate)


def plan(one: ExperimentRun) -> list[Stage]:
    return list(stages_of(one))
