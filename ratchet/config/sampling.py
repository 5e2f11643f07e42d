"""The section `sampling`: how trajectories are sampled for training."""

from __future__ import annotations

from pydantic import Field

from ratchet.config.section import Section


class SamplingConfig(Section):
    """How trajectories are sampled for training."""

    samples: int = Field(8, gt=0, le=100_000)
    """Number of trajectories per question."""
    temperature: float = Field(0.7, ge=0)
    """Temperature of trainable roles."""
    frozen_temperature: float = Field(0.1, ge=0)
    """Temperature of roles that are not trained."""
    top_p: float = Field(0.95, gt=0, le=1)
    """Probability mass of nucleus sampling. mRAG (Salemi et al. 2025, arXiv 2506.10844) uses nucleus sampling without
    giving a value; this one is ours."""
    concurrency: int = Field(64, gt=0)
    """Maximum number of trajectories in flight."""
    max_failures: int = Field(20, gt=0)
    """Number of trajectories in a row that failed, or had a tool that could not be reached, after which sampling stops
    with an error. It holds for evaluation as well."""
