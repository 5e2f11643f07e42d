"""Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv 2402.01306) of trajectories, or of single actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.training.objectives.objective import EQUAL, Alternatives, ExampleLogProbabilities, ExampleObjective, Lesson

if TYPE_CHECKING:
    import torch


class KahnemanTversky(ExampleObjective):
    """Each alternative alone: desirable above the mean reward, undesirable below it."""

    def lessons(self, alternatives: Alternatives) -> dict[str, Lesson]:
        """Each alternative whose reward differs from the mean."""
        question, weight, mean = alternatives.question, alternatives.weight, alternatives.mean
        return {
            name: Lesson(question, reward, weight, name, reward > mean)
            for name, reward in alternatives.rewards.items()
            if abs(reward - mean) > EQUAL
        }

    def losses(self, examples: ExampleLogProbabilities) -> torch.Tensor:
        """Equation 8 of the paper. The reference point, which has no gradient, is the mean ratio of these examples, or
        0 where that is negative; the paper estimates it from answers to other questions of the batch, which nobody
        sampled there."""
        ratios, desirable = examples.chosen + examples.rejected, examples.chosen_tokens > 0
        point = ratios.detach().mean().clamp(min=0)
        sign = desirable.to(ratios.dtype) * 2 - 1
        return 1 - (self.training.preference.beta * sign * (ratios - point)).sigmoid()


OBJECTIVE = KahnemanTversky
