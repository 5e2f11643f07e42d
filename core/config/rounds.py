"""The section `rounds`: how many rounds there are, what each starts from, and when an adapter is promoted."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ratchet.core.config.section import Section


class RoundsConfig(Section):
    """How many rounds of self-training there are, what each starts from, and when an adapter is promoted."""

    count: int = Field(1, gt=0)
    """Number of rounds of sampling, selecting and training. It may be raised on a run that is finished, which then
    resumes."""
    until_flat: bool = False
    """Whether the run ends before `count` rounds, after the first one whose adapter is not promoted: a gain on dev that
    chance may explain (`level`) is none. The best adapter is then tested as after the last round."""
    start: Literal["promoted", "base"] = "promoted"
    """What a round's training starts from. `promoted`: the last promoted adapter. `base`: a new adapter on the base
    model, as in ReST-EM (Singh et al. 2023, arXiv 2312.06585). In both cases the round samples with the last promoted
    adapter."""
    level: float = Field(0.05, gt=0, lt=1)
    """Significance level of promotion. An adapter is promoted if its mean on dev is higher than its parent's, the
    paired test has a p-value below this and, where at least ten questions changed, the 95% interval of the difference
    excludes zero. With one round there is no test."""
