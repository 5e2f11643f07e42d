"""The section `rewards`: how trajectories are scored, and which are trained on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ratchet.core.config.section import PathText, ScoreText, Section


class SelectConfig(Section):
    """Which scored trajectories are trained on."""

    ties: int = Field(3, gt=0)
    """Maximum number of trajectories kept per question when several have the best reward."""
    min_reward: float | None = 0.0
    """Drop a question whose best reward is not above this value. `null`: drop none, as in mRAG's paper, whose question
    keeps its best trajectories even where all rewards are 0."""
    min_scores: dict[ScoreText, float] = Field(default={})
    """By score, a value that at least one candidate of a question must be above, or the question is dropped. It is a
    rule of mRAG's published code, with 0.5 for every score, and not of its paper."""
    drop_all_equal: bool = False
    """Drop a question whose trajectories all have the same reward, or that has one alone. It is a rule of mRAG's
    published code, not of its paper (Salemi et al. 2025, arXiv 2506.10844)."""
    tie_break: tuple[str, ...] = ()
    """Scores that order the trajectories with the best reward where there are more than `ties`: the highest in the
    first of them, then in the next. Default, and where these are equal: the lowest sample numbers. mRAG's published
    code has correctness, faithfulness, relevance."""
    keep_status: tuple[Literal["finished", "out_of_budget"], ...] = ("finished",)
    """Ways of ending with which a trajectory is a candidate. Trajectories that ended otherwise have the reward 0. With
    `out_of_budget`, the response at the end of the budget is one too, as mRAG's algorithm 1 returns it; it then counts
    for `ratchet choose` and for the primary measure of an evaluation as well."""
    success: float = 0.5
    """Reward from which a trajectory counts as a success, for `difficulty`."""
    similarity: float | None = Field(1.0, gt=0, le=1)
    """Trajectories of a question count once when the share of four-token sequences that their actions have in common is
    at least this. 1: when their actions are the same. `null`: never, as in mRAG's paper, where each of several
    identical ones is kept."""
    difficulty: Literal["none", "failure_rate"] = "none"
    """Weight of a question in training: 1, or the share of its trajectories that did not succeed."""


class RewardsConfig(Section):
    """How trajectories are scored, and which are trained on."""

    weights: dict[ScoreText, float] = Field(default={"correctness": 4.0, "faithfulness": 1.0})
    """Weights of the scores by name: a built-in one (accuracy, em, f1, answer_match, nugget_containment and
    lexical_support by rules; reference_similarity by rules and the `embedder`; correctness, faithfulness, precision and
    relevance by the judge), or a file of your own, such as `./my_reward.py`. The reward is the weighted mean of these
    scores."""
    # Names here, because rewards/ is above this package and a reward is a plug-in: load_config checks them.
    judge: str = "judge"
    """Name of the model under `models` that gives the judged scores."""
    extracted: Literal["per_run", "once"] = "per_run"
    """How often the judge extracts nuggets from a reference, and claims from an answer (Salemi et al. 2025, arXiv
    2506.10844, algorithms 3 and 4). `per_run`: once for every judge run, since the paper executes each reward model
    five times (appendix D.3). `once`: all runs judge the same ones, as in the paper's published code, which costs fewer
    calls. Nuggets that a question brings are never extracted; `precision` takes over the claims of `faithfulness`."""
    extraction_temperature: float | None = Field(None, ge=0)
    """Temperature at which nuggets and claims are extracted; the published code has 0. Default: `temperature`."""
    empty_response: Literal["worst", "abstention"] = "worst"
    """What a response without words counts as in `correctness`. `worst`: 0, or -1 on the judge's scale, which is ours:
    to say nothing never beats a wrong answer. `abstention`: 1/3, or 0 on that scale, which figure 23 gives where there
    is no answer. In either case selection keeps no trajectory without an answer."""
    omitted_claims: Literal["unreadable", "neutral"] = "unreadable"
    """What becomes of a reply of the judge on `faithfulness` that leaves a claim out. `unreadable`: nothing of it
    counts, since its scores may be those of other claims. `neutral`: the claim has 0 on the scale from -1 to 1, as in
    the published code, and so have one whose score cannot be read, which else is no part of the mean, and a response in
    which the judge finds no claims (0.5 in place of the 0 with which algorithm 4 starts)."""
    constrained: bool = True
    """Constrain the decoding of the judge's replies to their JSON schema. mRAG's paper has none: with `false` a reply
    that is not the JSON asked for is an unreadable verdict."""
    verdicts: Literal["reason_first", "score_first"] = "reason_first"
    """What our prompts, and the schema of constrained decoding, have first in a verdict: the reason, so that the score
    follows from it, or the score, as in the figures of mRAG's paper."""
    normalisation: Literal["unicode", "published"] = "unicode"
    """How EM, F1, token precision and token recall bring answers into one form. `unicode`: what reads the same into one
    spelling (Unicode's NFKC without invisible characters; apostrophes, quotation marks and dashes of ASCII), then the
    rule of the published scorers, by which punctuation of any script at the ends of words does not count, no number
    becomes another one (1.5 is not 15, 10⁶ not 106), and scripts without blanks are split into words as in the index;
    an answer of which that leaves nothing, such as "A" or "+", is compared as it is. `published`: that rule alone
    (Rajpurkar et al. 2016, arXiv 1606.05250), with which "A" equals "The" and "1.5" equals "15"."""
    prompts: PathText | None = None
    """Folder of texts that replace the judge's prompts: one file for each prompt, `ratchet prompts --system rewards`
    writes them. Default: our own words."""
    runs: int = Field(5, gt=0, le=1_000)
    """Number of judge runs that a score is averaged over."""
    temperature: float = Field(0.5, ge=0)
    """Temperature of the judge."""
    max_tokens: int = Field(16_384, gt=0)
    """Maximum number of new tokens of one verdict, or what its prompt leaves of the judge's context, if that is less. A
    verdict that is cut off is counted, and asked for again, once, with all that the context has, if that is more."""
    select: SelectConfig = SelectConfig()
    """Which scored trajectories are trained on."""

    @model_validator(mode="after")
    def _check_scores_of_select(self) -> RewardsConfig:
        for key in ("min_scores", "tie_break"):
            for name in getattr(self.select, key):
                if not self.weights.get(name):
                    raise ValueError(f"select.{key}: {name} is not computed; give it a weight above 0 in weights")
        return self
