"""Direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290) of trajectories, or of single actions.

Process-level preferences of agents that search are from Xiong et al. 2025 (RAG-Gym, arXiv 2502.13957).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.training.objectives.objective import EQUAL, Alternatives, ExampleLogProbabilities, ExampleObjective, Lesson

if TYPE_CHECKING:
    import torch


class DirectPreference(ExampleObjective):
    """Pairs of a better and a worse alternative."""

    in_pairs = True

    def lessons(self, alternatives: Alternatives) -> dict[str, Lesson]:
        """The first kept one against the worst, the second against the second worst, and so on."""
        lessons: dict[str, Lesson] = {}
        question, weight, rewards = alternatives.question, alternatives.weight, alternatives.rewards
        kept = [name for name in alternatives.kept if name in rewards]
        for good, bad, pair in zip(kept, alternatives.worst, alternatives.pairs, strict=False):
            if rewards[good] - rewards[bad] > EQUAL:
                for name in (good, bad):
                    lessons[name] = Lesson(question, rewards[name], weight, pair, name == good)
        return lessons

    def losses(self, examples: ExampleLogProbabilities) -> torch.Tensor:
        """Equation 7 of the paper, with the mean negative log-probability of the chosen side's tokens (Pang et al.
        2024, arXiv 2404.19733, equation 1)."""
        from torch.nn.functional import logsigmoid  # late: rows are built without torch

        preference = self.training.preference
        losses = -logsigmoid(preference.beta * (examples.chosen - examples.rejected))
        return losses - preference.sft_weight * examples.chosen_now / examples.chosen_tokens


OBJECTIVE = DirectPreference
