"""The `rounds` section of a config."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ratchet.config import Config, Section
from ratchet.errors import UserError
from ratchet.parsing import parse


class RoundsConfig(Section):
    count: int = Field(1, gt=0)
    """Rounds of sampling, selecting and training. May be raised on a run that is finished: it goes on."""
    start: Literal["promoted", "base"] = "promoted"
    """What a round's training begins from: the last promoted adapter, or an adapter that is no change of the base model
    (as in ReST-EM, Singh et al. 2024). Either way it samples with the last promoted adapter."""
    level: float = Field(0.05, gt=0, lt=1)
    """A trained adapter is promoted if its mean on dev is higher than its parent's, with p of the paired test below
    this. With one round there is nothing to promote for, and no test."""


def rounds_of(config: Config) -> RoundsConfig:
    """Raises UserError that names the key."""
    rounds = parse(RoundsConfig, config.rounds, "rounds")
    if rounds.count > 1 and config.members:
        raise UserError("rounds.count: members of a shared adapter run one round; leave it at 1")
    if rounds.count > 1 and config.evaluation.split == "dev":
        raise UserError(
            "evaluation.split: dev is what rounds are chosen by, so it cannot say how good the choice is; set test"
        )
    return rounds
