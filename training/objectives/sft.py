"""Supervised fine-tuning on the kept trajectories (Salemi et al. 2025, arXiv 2506.10844, section 3.2).

The loss is -log p of each label. Where all questions weigh the same, the trainer computes it with TRL's own head
(`training.trainer`), which keeps no logits; the loss here is of questions with weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.training.objectives.objective import Alternatives, Lesson, RowLogProbabilities, RowObjective

if TYPE_CHECKING:
    import torch


class SupervisedFineTuning(RowObjective):
    """Likelihood of the kept trajectories, each with its question's weight."""

    learns_from_kept_alone = True
    needs_both_sides = False
    needs_reference = False
    keeps_logits = False

    def lessons(self, alternatives: Alternatives) -> dict[str, Lesson]:
        """Each kept trajectory, with its question's weight."""
        question, weight = alternatives.question, alternatives.weight
        return {key: Lesson(question, reward, weight, "", True) for key, reward in alternatives.kept.items()}

    def loss(self, rows: RowLogProbabilities) -> torch.Tensor:
        """The sum of -w log p."""
        return (-rows.weights[:, None] * rows.now).where(rows.learnt, 0).sum()


OBJECTIVE = SupervisedFineTuning
