"""The section `rounds`: how many rounds there are, what each learns from, and when an adapter is promoted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ratchet.config.section import Section


class RoundsConfig(Section):
    """How many rounds of self-training there are, what each learns from, and when an adapter is promoted."""

    count: int = Field(1, gt=0)
    """Number of rounds of sampling, selecting and training. It may be raised on a run that is finished, which then
    resumes."""
    start: Literal["promoted", "base"] = "promoted"
    """What a round's training starts from. `promoted`: the last promoted adapter. `base`: a new adapter on the base
    model, as in ReST-EM (Singh et al. 2023, arXiv 2312.06585). In both cases the round samples with the last promoted
    adapter."""
    learn_from: Literal["last", "all"] = "last"
    """Which trajectories a round learns from. `last`: what it sampled and selected itself. `all`: that and what every
    earlier round selected, each by its own selection."""
    temperatures: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """Temperature of trainable roles by round, in place of `sampling.temperature`; later rounds have the last one.
    Default: `sampling.temperature` in every round."""
    stop: Literal["never", "no_gain"] = "never"
    """When no further round is started before `count` is reached. `no_gain`: after a round whose adapter was not
    promoted, or gained no more questions over its parent than sampling the base model again gains or breaks. The
    latter is known where `evaluation.controls` has base-again."""
    min_gain: float = Field(0.05, gt=0)
    """Gain that promotion is meant to notice. A round warns where dev has too few questions to show it with a power of
    0.8 at `level`, and says how many it takes."""
    level: float = Field(0.05, gt=0, lt=1)
    """Significance level of promotion. An adapter is promoted if its mean on dev is higher than its parent's and the
    paired test has a p-value below this. With one round there is no test."""
