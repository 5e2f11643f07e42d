"""The section `rewards`: how trajectories are scored, and which are trained on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ratchet.config.section import Section


class SelectConfig(Section):
    """Which scored trajectories are trained on."""

    ties: int = Field(3, gt=0)
    """Maximum number of trajectories kept per question when several have the best reward."""
    min_reward: float = 0.0
    """Drop a question whose best reward is not above this value."""
    drop_all_equal: bool = False
    """Drop a question whose trajectories all have the same reward. It is a rule of mRAG's published code, not of its
    paper (Salemi et al. 2025, arXiv 2506.10844)."""
    keep_status: tuple[Literal["finished", "out_of_budget"], ...] = ("finished",)
    """Ways of ending with which a trajectory is a candidate. Trajectories that ended otherwise have the reward 0."""


class RewardsConfig(Section):
    """How trajectories are scored, and which are trained on."""

    weights: dict[str, float] = Field(default={"correctness": 4.0, "faithfulness": 1.0})
    """Weights of the scores by name: a built-in one (accuracy, em, f1, nugget_containment and lexical_support by rules;
    reference_similarity by rules and the `embedder`; correctness, faithfulness, precision, ragas_faithfulness and
    answer_relevance by the judge), or a file of your own, such as `./my_reward.py`. The reward is the weighted mean of
    these scores."""
    # Names here, because rewards/ is above this package and a reward is a plug-in: load_config checks them.
    judge: str = "judge"
    """Name of the model under `models` that gives the judged scores."""
    runs: int = Field(5, gt=0, le=1_000)
    """Number of judge runs that a score is averaged over."""
    temperature: float = Field(0.5, ge=0)
    """Temperature of the judge."""
    top_p: float = Field(0.95, gt=0, le=1)
    """Probability mass of the judge's nucleus sampling."""
    max_tokens: int = Field(2048, gt=0)
    """Maximum number of new tokens of one verdict."""
    select: SelectConfig = SelectConfig()
    """Which scored trajectories are trained on."""
