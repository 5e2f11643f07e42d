"""The section `sampling`: how trajectories are sampled for training."""

from __future__ import annotations

from pydantic import Field

from ratchet.core.config.section import Section

TOP_P = 0.95
"""Probability mass of nucleus sampling, which mRAG (Salemi et al. 2025, arXiv 2506.10844) uses without giving a value.
It holds for evaluation and for the judge, and sampling has it by default."""


class SamplingConfig(Section):
    """How trajectories are sampled for training."""

    samples: int = Field(8, gt=0, le=100_000)
    """Number of trajectories per question."""
    temperature: float = Field(0.7, ge=0)
    """Temperature of trainable roles."""
    frozen_temperature: float = Field(0.1, ge=0)
    """Temperature of roles that are not trained."""
    top_p: float = Field(TOP_P, gt=0, le=1)
    """Probability mass of nucleus sampling, which is 0.95 in evaluation and of the judge. mRAG (Salemi et al.
    2025, arXiv 2506.10844) uses nucleus sampling without giving a value; this one is ours."""
    concurrency: int | None = Field(None, gt=0)
    """Maximum number of trajectories in flight. Default: the number of requests that the model with the most takes at
    once (`models.*.concurrency` of all its servers, or `models.*.batch`)."""
