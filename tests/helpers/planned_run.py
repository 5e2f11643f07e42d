"""A run that is planned and not run: its config, and the stages that it comes to."""

from pathlib import Path
from typing import Any

from ratchet.core.config import Config
from ratchet.core.files import write_record
from ratchet.core.records import Cause, QuestionChoice, Selection
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.measures.estimates import Difference
from ratchet.rounds.records import Promotion, last_promoted
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


def decided(run: RunFolder, number: int, promoted: bool) -> None:
    """Write the decision on a round's adapter."""
    before = last_promoted(run, before=number)
    promotion = Promotion(
        round=number,
        candidate=f"adapter{number}",
        parent=f"adapter{before}" if before else "base",
        split="dev",
        measure="f1",
        base=0.1,
        difference=Difference(n=0),
        promoted=promoted,
        reason="as told",
    )
    write_record(run.round(number).promotion, promotion)


def selected(run: RunFolder, number: int, kept: tuple[str, ...]) -> None:
    """Write a round's selection of one question."""
    cause: Cause = "kept" if kept else "no_trajectory"
    choice = QuestionChoice(question_id="q", kept=kept, cause=cause, reason="", rewards={"k": 1.0})
    write_record(run.round(number).selection, Selection(weights={}, rule={}, questions=(choice,)))
