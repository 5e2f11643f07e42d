"""The losses of the objectives other than `sft`, as functions of log-probabilities.

A log-probability here is of a token that was sampled, given everything before it; the reference is the same token's
under the model that training starts from (`training.reference`).
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import logsigmoid

from ratchet.config import PreferenceConfig


def weighted_loss(
    logps: torch.Tensor, reference: torch.Tensor, learnt: torch.Tensor, weights: torch.Tensor, clip: float
) -> torch.Tensor:
    """The summed loss of rows with weights (rows,); the others are (rows, positions), `learnt` of bool.

    With a weight w > 0 a token's loss is -w log p. With w < 0 it is |w| max(log p - log p_ref, log(1 - clip)): it is
    never below |w| log(1 - clip), its gradient never more than that of likelihood with the weight |w|, and 0 once the
    token has less than 1 - clip of the probability that it had when it was sampled.
    """
    above, below = weights.clamp(min=0)[:, None], (-weights).clamp(min=0)[:, None]
    ratio = (logps - reference).clamp(min=math.log(1 - clip))
    return torch.where(learnt, below * ratio - above * logps, 0).sum()


def dpo_losses(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    chosen_logps: torch.Tensor,
    chosen_tokens: torch.Tensor,
    preference: PreferenceConfig,
) -> torch.Tensor:
    """Losses (pairs,) of direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290, equation 7), with the
    mean negative log-probability of the chosen side's tokens (Pang et al. 2024, arXiv 2404.19733, equation 1).

    `chosen` and `rejected` are the sums of log p - log p_ref over a side's tokens, all of shape (pairs,).
    """
    losses = -logsigmoid(preference.beta * (chosen - rejected))
    return losses - preference.sft_weight * chosen_logps / chosen_tokens


def kto_losses(ratios: torch.Tensor, desirable: torch.Tensor, preference: PreferenceConfig) -> torch.Tensor:
    """Losses (examples,) of Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv 2402.01306, equation 8),
    without their weights. `ratios` are the sums of log p - log p_ref over an example's tokens.

    The reference point, which has no gradient, is the mean ratio of these examples, or 0 where that is negative. The
    paper estimates it from answers to other questions of the batch, which nobody sampled there.
    """
    point = ratios.detach().mean().clamp(min=0)
    sign = desirable.to(ratios.dtype) * 2 - 1
    return 1 - torch.sigmoid(preference.beta * sign * (ratios - point))
