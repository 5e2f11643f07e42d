"""The section `rewards`: how trajectories are scored, and which are trained on."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

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
    only_mixed: bool = False
    """Drop a question unless some of its trajectories succeeded and some did not."""
    success: float = 0.5
    """Reward from which a trajectory counts as a success, for `only_mixed` and `difficulty`."""
    balance: tuple[Literal["label", "kind"], ...] = ()
    """Fields of a question. Questions are dropped until every value of these fields has as many kept questions as the
    rarest one has."""
    max_trajectories: int | None = Field(None, gt=0)
    """Maximum number of trajectories of a question that are learnt from: first the kept ones, then the worst and the
    best of the others by turns. Default: no limit."""
    similarity: float = Field(1.0, gt=0, le=1)
    """Trajectories of a question count once when the share of four-token sequences that their actions have in common is
    at least this. 1: when their actions are the same."""
    difficulty: Literal["none", "failure_rate"] = "none"
    """Weight of a question in training: 1, or the share of its trajectories that did not succeed."""

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Rules that came after the first run folders are written only where they are used: stage digests of those
        folders stay."""
        written: dict[str, Any] = write(self)
        later = ("only_mixed", "success", "balance", "max_trajectories", "similarity", "difficulty")
        default = type(self).model_fields
        return {
            key: value
            for key, value in written.items()
            if key not in later or getattr(self, key) != default[key].default
        }


class RewardsConfig(Section):
    """How trajectories are scored, and which are trained on."""

    weights: dict[str, float] = Field(default={"correctness": 4.0, "faithfulness": 1.0})
    """Weights of the scores by name: a built-in one (accuracy, em, f1, nugget_containment and lexical_support by rules;
    correctness, faithfulness, precision, ragas_faithfulness and answer_relevance by the judge), or a file of your own,
    such as `./my_reward.py`. The reward is the weighted mean of these scores."""
    # Names here, because rewards/ is above this package and a reward is a plug-in: load_config checks them.
    judge: str = "judge"
    """Name of the model under `models` that gives the judged scores."""
    runs: int = Field(5, gt=0)
    """Number of judge runs that a score is averaged over."""
    temperature: float = Field(0.5, ge=0)
    """Temperature of the judge."""
    top_p: float = Field(0.95, gt=0, le=1)
    """Probability mass of the judge's nucleus sampling."""
    max_tokens: int = Field(2048, gt=0)
    """Maximum number of new tokens of one verdict."""
    select: SelectConfig = SelectConfig()
    """Which scored trajectories are trained on."""
