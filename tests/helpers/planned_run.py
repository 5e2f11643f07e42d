"""A run that is planned and not run: its config, and the stages that it comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.config import Config
from rounds.stage import ExperimentRun, Stage
from rounds.stages import stages_of


def experiment(folder: Path, accelerate: str | None = None, **changes: Any) -> ExperimentRun:
    questions = folder / "questions.jsonl"
    questions.write_text('{"id": "q", "text": "Who?"}\n')
    split = {"path": str(questions)}
    config: dict[str, Any] = {
        "run": str(folder / "run"),
        "models": {"agent": {"path": "some/model", "engine": "local", "device": "cpu"}},
        "index": {"path": str(folder / "index")},
        "questions": {"train": split, "dev": split, "test": split},
        "rewards": {"weights": {"f1": 1.0}},
        "evaluation": {"scores": ["f1"]},
    }
    return ExperimentRun(Config.model_validate(config | changes), ("--config", "c.yaml"), accelerate)


def plan(one: ExperimentRun) -> list[Stage]:
    return list(stages_of(one))
