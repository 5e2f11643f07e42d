"""What a training is given by its command. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.core.config import Config, ModelConfig, TrainingConfig
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RoundFolder

if TYPE_CHECKING:  # else the command's help would load what rows are read with
    from ratchet.training.kept import LearntRound


@dataclass(frozen=True)
class TrainingTask:
    """One round, or one of its controls, to train."""

    config: Config
    folder: RoundFolder
    rounds: tuple[LearntRound, ...]
    """What it learns from."""
    start: Path | None
    """The adapter that training continues."""

    @property
    def training(self) -> TrainingConfig:
        return self.config.training

    @property
    def model(self) -> ModelConfig:
        return self.config.models[self.training.model]

    @property
    def target(self) -> Path:
        """Where training leaves its adapter: the round's, or one that `ratchet choose` has to choose first."""
        return self.folder.adapter if self.training.choose_by == "held_out_loss" else self.folder.candidate


def check_model_is_open(name: str, model: ModelConfig) -> None:
    """Raises UserError where the model `name`, which is to be trained, is a closed one."""
    if model.engine == "chat-api":
        raise UserError(
            f"models.{name}: {model.path} is a closed model (engine: chat-api), which cannot be trained; "
            "train an open model, or only evaluate: ratchet evaluate --base-only"
        )
