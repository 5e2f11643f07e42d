"""The interface of objectives: the lessons from a question's attempts, and the loss on log-probabilities.

An objective is a file in this folder, or one of your own that `training.objective` names by its path. It defines a
subclass of `RowObjective` or `ExampleObjective` and names it `OBJECTIVE`. Rows, packing, the reference model, resuming,
`ratchet show` and the plan then follow from what the class says. Nothing here loads torch: rows are built without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.core.config import TrainingConfig
from ratchet.core.errors import UserError
from ratchet.core.plugins import load_plugin

if TYPE_CHECKING:
    import torch

EQUAL = 1e-9
"""Rewards and weights closer than this differ only by rounding."""


@dataclass(frozen=True)
class Lesson:
    """The lesson of one trajectory or action; the fields are those of a token row."""

    question: str
    reward: float
    weight: float
    example: str
    """Name of the example that it is a part of; empty where every row stands alone."""
    chosen: bool
    """True makes it more likely."""


@dataclass(frozen=True)
class Alternatives:
    """The alternatives of one question: whole trajectories, or actions of a role after the same tokens."""

    question: str
    weight: float
    """The weight of the question (`rewards.select.difficulty`)."""
    rewards: Mapping[str, float]
    """The reward of each by name: of a trajectory by key; of an action, the mean over the attempts that took it."""
    mean: float
    """The mean reward of all attempts, those that did not finish among them."""
    kept: Mapping[str, float]
    """Reward of those that selection kept; of actions, of the best one."""
    pairs: Sequence[str]
    """Names for the pairs that an objective makes of these, as many as there may be."""
    roles: tuple[str, ...] = ()
    """The roles that learn, where they have rewards of their own; empty: all that are trained."""

    @property
    def worst(self) -> list[str]:
        """The alternatives that were not kept, the worst first."""
        return sorted((name for name in self.rewards if name not in self.kept), key=lambda name: self.rewards[name])


class Objective(ABC):
    """An objective with the settings of a training."""

    learns_from_kept_alone: ClassVar[bool] = False
    """True where it learns from the kept trajectories alone, and knows no weights but the questions'."""
    needs_both_sides: ClassVar[bool] = True
    """True where good trajectories alone teach it nothing."""
    needs_reference: ClassVar[bool] = True
    """True where its loss reads log-probabilities of the model that training starts from."""
    keeps_logits: ClassVar[bool] = True
    """True where all logits of a micro-batch's labels are in memory at once; `ratchet plan` counts them."""

    def __init__(self, name: str, training: TrainingConfig) -> None:
        """`name`: as records have it."""
        self.name, self.training = name, training

    @property
    def compares_actions(self) -> bool:
        """True where the alternatives are single actions, which are read from the trajectories."""
        return False

    @abstractmethod
    def lessons(self, alternatives: Alternatives) -> dict[str, Lesson]:
        """By the names of `alternatives.rewards`, what is learnt; in the order of the rows."""


@dataclass(frozen=True)
class RowLogProbabilities:
    """Log-probabilities of the labels of a micro-batch, each (rows, positions) unless said otherwise."""

    now: torch.Tensor
    reference: torch.Tensor
    """Before training; 0 without a reference model."""
    learnt: torch.Tensor
    """bool: which of them are of labels."""
    weights: torch.Tensor
    """(rows,), the lessons' times `training.role_weights`."""
    roles: Sequence[str]
    """The role of each row."""


class RowObjective(Objective):
    """An objective whose loss is a sum over tokens: rows stand alone, in any order."""

    @abstractmethod
    def loss(self, rows: RowLogProbabilities) -> torch.Tensor:
        """The summed loss of the rows, a scalar; a step divides it by the number of its labels."""


@dataclass(frozen=True)
class ExampleLogProbabilities:
    """Sums of log-probabilities over the rows of examples, each (examples,), in float64. Each row counts by the weight
    of its role (`training.role_weights`)."""

    chosen: torch.Tensor
    """Sum of log p - log p_ref over the tokens of the side that is made more likely; 0 without one."""
    rejected: torch.Tensor
    """The same of the other side."""
    chosen_now: torch.Tensor
    """Sum of log p over the tokens of the chosen side."""
    chosen_tokens: torch.Tensor
    """The number of its tokens; 0 for an example that has only the other side."""
    roles: Sequence[Sequence[str]]
    """The roles of each example's rows."""


class ExampleObjective(Objective):
    """An objective whose loss is a mean over examples of several rows, which are all in the same step.

    Its alternatives are whole trajectories, or actions (`training.preference.level`).
    """

    in_pairs: ClassVar[bool] = False
    """True drops an example of which one side has no row."""

    @property
    def compares_actions(self) -> bool:
        return self.training.preference.level == "action"

    @abstractmethod
    def losses(self, examples: ExampleLogProbabilities) -> torch.Tensor:
        """The loss of each example without its weight, (examples,)."""


def load_objective(training: TrainingConfig) -> Objective:
    """The objective that the settings name. Raises UserError where there is none of this name."""
    plugin = load_plugin("objectives", training.objective, ("OBJECTIVE",), "training.objective")
    made: Any = plugin.module.OBJECTIVE
    if not (isinstance(made, type) and issubclass(made, Objective)):
        raise UserError(f"{plugin.module.__file__}: OBJECTIVE is no subclass of RowObjective or ExampleObjective")
    return made(plugin.label, training)


def recorded_settings(objective: Objective) -> dict[str, Any]:
    """All that an adapter depends on, as JSON."""
    return objective.training.model_dump(mode="json", exclude={"wandb"}) | {"objective": objective.name}
