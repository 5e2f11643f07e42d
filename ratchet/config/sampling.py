"""The section `sampling`: how trajectories are sampled for training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ratchet.config.section import Section


class SamplingConfig(Section):
    """How trajectories are sampled for training."""

    samples: int = Field(8, gt=0, le=100_000)
    """Number of trajectories per question."""
    pilot: int | None = Field(None, gt=0)
    """Number of trajectories per question that are sampled and scored first. The rest of `samples` times the number of
    questions is then divided by the number of failures: questions without a success get the most, those with successes
    alone the least. Default: every question gets `samples`."""
    hints: Literal["none", "answer", "document"] = "none"
    """What the prompt tells of a question without a success in the pilot while half of its further trajectories are
    sampled: nothing, its gold answer, or its gold documents. No training row holds it: rows have the prompts without a
    hint (Zelikman et al. 2022, STaR, arXiv 2203.14465)."""
    temperature: float = Field(0.7, ge=0)
    """Temperature of trainable roles."""
    frozen_temperature: float = Field(0.1, ge=0)
    """Temperature of roles that are not trained."""
    top_p: float = Field(0.95, gt=0, le=1)
    """Probability mass of nucleus sampling. mRAG (Salemi et al. 2025, arXiv 2506.10844) uses nucleus sampling without
    giving a value; this one is ours."""
    concurrency: int | None = Field(None, gt=0)
    """Maximum number of trajectories in flight. Default: the number of requests that the model with the most takes at
    once (`models.*.concurrency` of all its servers, or `models.*.batch`)."""

    @model_validator(mode="after")
    def _check_pilot(self) -> SamplingConfig:
        if self.pilot is not None and self.pilot >= self.samples:
            raise ValueError(f"pilot: {self.pilot} of {self.samples} samples leaves none to divide; lower it")
        if self.hints != "none" and self.pilot is None:
            raise ValueError("hints: go to questions without a success in the pilot; set pilot, such as 4")
        return self
