"""Likelihood weighted by reward less the question's mean reward, as in REINFORCE with a baseline.

Chen et al. 2025 (NFT, arXiv 2505.18116) and Xiong et al. 2025 (arXiv 2504.11343) compare learning from negatives with
learning from the positives alone. The bound on negatives is ours.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ratchet.training.objectives.objective import EQUAL, Alternatives, Lesson, RowLogProbabilities, RowObjective

if TYPE_CHECKING:
    import torch

NEGATIVE_WEIGHT = 0.1
"""Factor on negative weights."""
CLIP = 0.2
"""A negative weight acts on a token until its probability is below 1 - CLIP times that before training."""


class Weighted(RowObjective):
    """Every candidate by its reward: above the mean of all attempts at the question more likely, below it less."""

    def lessons(self, alternatives: Alternatives) -> dict[str, Lesson]:
        """Each candidate with a reward that differs from the mean."""
        lessons: dict[str, Lesson] = {}
        for key, reward in alternatives.rewards.items():
            advantage = reward - alternatives.mean
            weight = alternatives.weight * advantage * (1.0 if advantage > 0 else NEGATIVE_WEIGHT)
            if abs(weight) > EQUAL:
                lessons[key] = Lesson(alternatives.question, reward, weight, "", weight > 0)
        return lessons

    def loss(self, rows: RowLogProbabilities) -> torch.Tensor:
        """With a weight w > 0 a token's loss is -w log p. With w < 0 it is |w| max(log p - log p_ref, log(1 - CLIP)):
        it is never below |w| log(1 - CLIP), its gradient never more than that of likelihood with the weight |w|, and 0
        once the token has less than 1 - CLIP of the probability that it had when it was sampled."""
        above, below = rows.weights.clamp(min=0)[:, None], (-rows.weights).clamp(min=0)[:, None]
        ratio = (rows.now - rows.reference).clamp(min=math.log(1 - CLIP))
        return (below * ratio - above * rows.now).where(rows.learnt, 0).sum()


OBJECTIVE = Weighted
