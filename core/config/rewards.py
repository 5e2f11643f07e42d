"""The section `rewards`: how trajectories are scored, and which are trained on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, WrapValidator, model_serializer, model_validator
from pydantic import ValidatorFunctionWrapHandler as Validate

from ratchet.core.config.section import PathText, ScoreText, Section


class Weight(float):
    """The weight of a score that has settings."""

    settings: dict[str, Any]


def _read_weight(given: Any, validate: Validate) -> float:
    if not isinstance(given, dict):
        return given if isinstance(given, Weight) else float(validate(given))
    if not {"weight"} <= given.keys() <= {"weight", "settings"} or not isinstance(given.get("settings", {}), dict):
        raise ValueError(f"a weight is a number, or {{weight: 1, settings: {{...}}}}, got {given}")
    weight = Weight(validate(given["weight"]))
    weight.settings = given.get("settings", {})
    return weight if weight.settings else float(weight)


def _written_weight(weight: float) -> Any:
    return {"weight": float(weight), "settings": weight.settings} if isinstance(weight, Weight) else weight


WeightValue = Annotated[float, WrapValidator(_read_weight), PlainSerializer(_written_weight)]
"""A weight in a config: a number, or {weight: number, settings: {...}}."""


class SelectConfig(Section):
    """Which scored trajectories are trained on."""

    ties: int = Field(3, gt=0)
    """Maximum number of trajectories kept per question when several have the best reward."""
    min_reward: float | None = 0.0
    """Drop a question whose best reward is not above this value. `null`: drop none, as in mRAG's paper."""
    min_scores: dict[ScoreText, float] = Field(default={})
    """By score, a value that at least one candidate of a question must be above, or the question is dropped. mRAG's
    published code has 0.5 for every score."""
    drop_all_equal: bool = False
    """Drop a question whose trajectories all have the same reward, or that has one alone, as mRAG's published code
    does."""
    prefer: tuple[ScoreText, ...] = ()
    """Scores that order the best trajectories where there are more than `ties`, the least of a cost first. Default,
    and where these are equal: the lowest sample numbers."""
    balance_searches: bool = False
    """Keep as many questions whose best trajectory searched at most once as others, and drop the surplus."""
    keep_status: tuple[Literal["finished", "out_of_budget"], ...] = ("finished",)
    """Statuses of candidates; others have the least reward. With `out_of_budget`, the response at the end of the budget
    is one too, as in mRAG's algorithm 1, also for `ratchet choose` and the primary measure of an evaluation."""
    success: float = 0.5
    """Reward from which a trajectory counts as a success, for `difficulty`."""
    similarity: float | None = Field(1.0, gt=0, le=1)
    """Trajectories of a question count once when their actions share at least this part of their four-token sequences.
    1: when they are the same. `null`: never, as in mRAG's paper."""
    difficulty: Literal["none", "failure_rate"] = "none"
    """Weight of a question in training: 1, or the share of its trajectories that did not succeed."""


class RunsConfig(Section):
    """Number of judge runs that a score is averaged over: `runs: 5`, the default, or `runs: {least: 2, most: 5}`, where
    further ones are for those that may be kept ([fewer judge calls](../guides/large-runs.md#fewer-judge-calls)). An
    evaluation has `most`."""

    least: int = Field(5, gt=0, le=1_000)
    """Runs of every trajectory."""
    most: int = Field(5, gt=0, le=1_000)
    """Runs of a trajectory whose score could still change which ones are kept."""

    @model_validator(mode="before")
    @classmethod
    def _both_of_a_number(cls, given: Any) -> Any:
        return {"least": given, "most": given} if isinstance(given, (int, float, str)) else given

    @model_validator(mode="after")
    def _check_least(self) -> RunsConfig:
        if self.least != self.most and not 2 <= self.least < self.most:
            raise ValueError(f"least: {self.least} and most: {self.most}; give 2 runs at least, and more at most")
        return self

    @model_serializer
    def _written(self) -> int | dict[str, int]:
        return self.most if self.least == self.most else {"least": self.least, "most": self.most}


class RewardsConfig(Section):
    """The scores of trajectories, and the choice of those that are trained on."""

    weights: dict[ScoreText, WeightValue] = Field(default={"correctness": 4.0, "faithfulness": 1.0})
    """Weights of the scores, whose weighted mean, less costs, is the reward: by rules accuracy, em, f1, answer_match,
    nugget_containment, lexical_support, useful_searches and, with the `embedder`, reference_similarity; by the judge
    correctness, faithfulness, precision and relevance; or a file of your own, such as `./my_reward.py`, which may have
    settings: `{weight: 1, settings: {...}}`. A score with the weight 0 is computed and no part of the reward.
    [Costs](../guides/extend.md#costs) have weights below 0."""
    # Names here, because rewards/ is above this package and a reward is a plug-in: load_config checks them.
    judge: str = "judge"
    """Name of the model under `models` that judges."""
    extracted: Literal["per_run", "once"] = "per_run"
    """How often nuggets and claims are extracted: for every judge run (mRAG's appendix D.3), or `once` for all runs, as
    in its published code. Nuggets that a question brings are never extracted."""
    extraction_temperature: float | None = Field(None, ge=0)
    """Temperature of this extraction; the published code has 0. Default: `temperature`."""
    nuggets_per_call: int = Field(1, gt=0, le=100, exclude_if=lambda nuggets: nuggets == 1)
    """Nuggets that the judge scores in one call: 1, as in mRAG's paper, or 10, as AutoNuggetizer (Pradeep et al. 2025,
    arXiv 2504.15068) assigns them. A list that is cut off or misnumbered is asked for again nugget by nugget."""
    empty_response: Literal["worst", "abstention"] = "worst"
    """Correctness of a response without words. `worst`: 0. `abstention`: 1/3, by figure 23."""
    omitted_claims: Literal["unreadable", "neutral"] = "unreadable"
    """A judge's reply on `faithfulness` that leaves a claim out. `unreadable`: nothing of it counts. `neutral`: the
    claim has 0 on the scale from -1 to 1, as in the published code, and so have an unreadable score and a response
    without claims."""
    constrained: bool = True
    """Constrain the judge's replies to their JSON schema. mRAG's paper does not; a reply that is no such JSON is then
    an unreadable verdict."""
    verdicts: Literal["reason_first", "score_first"] = "reason_first"
    """Order of a verdict: its reason first, or the score first, as in the figures of mRAG's paper."""
    normalisation: Literal["unicode", "published"] = "unicode"
    """How EM, F1, token precision and token recall compare answers. `unicode`: by NFKC, with equal apostrophes,
    quotation marks and dashes, numbers whole (1.5 is not 15), and "A" or "+" as they are. `published`: by the rule of
    SQuAD's scorer alone (Rajpurkar et al. 2016, arXiv 1606.05250), with which "1.5" equals "15"."""
    prompts: PathText | None = None
    """Folder of texts that replace the judge's [prompts](prompts.md). Default: our own."""
    runs: RunsConfig = RunsConfig()
    """The judge runs of a score."""
    temperature: float = Field(0.5, ge=0)
    """Temperature of the judge."""
    max_tokens: int = Field(16_384, gt=0)
    """Maximum number of new tokens of one verdict, or what its prompt leaves of the context. A verdict that is cut off
    is asked for again once, with all that the context has."""
    select: SelectConfig = SelectConfig()
    """Which scored trajectories are trained on."""

    def settings_of(self, score: str) -> dict[str, Any]:
        """The settings that the config gives a score."""
        weight = self.weights.get(score)
        return weight.settings if isinstance(weight, Weight) else {}

    @model_validator(mode="after")
    def _check_scores_of_select(self) -> RewardsConfig:
        for key in ("min_scores", "prefer"):
            for name in getattr(self.select, key):
                if name not in self.weights:
                    raise ValueError(
                        f"select.{key}: {name} is not computed; give it a weight, which may be 0, in weights"
                    )
        return self
