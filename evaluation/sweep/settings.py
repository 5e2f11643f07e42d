"""The `sweep` section of a config.

    sweep:
      runs: [runs/demo]                       # every round's adapter, and the checkpoints within its training
      checkpoints: {other: adapters/other}    # adapters from elsewhere, by a name
      dev: [dev]                              # the best checkpoint is chosen on these
      test: [test]                            # and measured on these, once

Without a section: the config's own run, its own system, dev, and the question sets that `python -m evaluation` takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from pydantic import Field

from evaluation.measures.measures import BY_NAME, LENIENT, MATCHES
from evaluation.results import MACRO_F1
from ratchet.config import Config, ScoreName, Section, SystemConfig
from ratchet.errors import UserError, did_you_mean
from ratchet.parsing import parse

BASE = "base"
"""The checkpoint that is no adapter: the base model, which is in every sweep."""
LONGEST_NAME = 100
MADE_FROM = {
    "correctness_f1": ("correctness", "precision"),
    "unattributed": ("faithfulness",),
    "unattributed_rule": ("lexical_support",),
}
"""Scores behind the measures that are no scores themselves (`evaluation.measures.measures`)."""


class Reference(Section):
    """What differences are against."""

    checkpoint: str = BASE
    system: str | None = None
    """Default: each system against itself under that checkpoint."""


class Price(Section):
    """Of a model, in whatever currency, for a million tokens."""

    prompt: float = Field(0.0, ge=0)
    cached: float | None = Field(None, ge=0)
    """Prompt tokens that were cached; default: like the others."""
    new: float = Field(0.0, ge=0)


class SweepConfig(Section):
    checkpoints: dict[str, str] = Field(default={})
    """Adapter folders by name."""
    runs: tuple[str, ...] | None = None
    """Run folders whose adapters are all checkpoints. Default: the config's own where no checkpoint is named."""
    steps: bool = True
    """Also the adapters that training left on the way (round-N/training): a learning curve within a round."""
    systems: dict[str, SystemConfig] = Field(default={})
    """By name. Default: the config's own system."""
    skip: dict[str, tuple[str, ...]] = Field(default={})
    """By system, question sets that it is not run on."""
    dev: tuple[str, ...] = ("dev",)
    """Question sets on which the best checkpoint is chosen: dev, train, or of evaluation.benchmarks."""
    test: tuple[str, ...] | None = None
    """Question sets that only the chosen checkpoints are measured on. Default: evaluation.split and the benchmarks, as
    far as they are not under dev."""
    base: Reference = Reference()
    measure: str = ""
    """What chooses and is compared. Default: accuracy of labels, F1 of short answers, of long ones nugget correctness
    where it is asked for."""
    prices: dict[str, Price] = Field(default={})
    """By a name under models. Default: no prices, tokens only."""


def sweep_of(config: Config) -> SweepConfig:
    """The config's sweep, checked. Raises UserError that names the key."""
    settings = parse(SweepConfig, config.sweep, "sweep")
    check_names("sweep.checkpoints", settings.checkpoints, taken=(BASE,))
    check_names("sweep.systems", settings.systems)
    systems = settings.systems or {config.system.name: config.system}
    for key, name in [*(("skip", name) for name in settings.skip), ("base.system", settings.base.system)]:
        if name is not None and name not in systems:
            raise UserError(f"sweep.{key}: {name!r} is no system of this sweep{did_you_mean(name, systems)}")
    for key in ("dev", "test"):
        names = getattr(settings, key) or ()
        if len(set(names)) < len(names):
            raise UserError(f"sweep.{key}: a question set is named twice")
    if not settings.dev:
        raise UserError("sweep.dev: name at least one question set to choose on")
    if both := set(settings.dev) & set(settings.test or ()):
        raise UserError(f"sweep.test: {', '.join(sorted(both))} is under dev too; what chooses cannot test the choice")
    for name in settings.prices:
        if name not in config.models:
            raise UserError(f"sweep.prices.{name}: not under models{did_you_mean(name, config.models)}")
    for name, system in systems.items():
        for role, played in system.roles.items():
            if played.model not in config.models:
                raise UserError(
                    f"sweep.systems.{name}.roles.{role}.model: {played.model!r} is not under models"
                    f"{did_you_mean(played.model, config.models)}"
                )
    _check_measure(settings.measure, config)
    return settings


def _check_measure(name: str, config: Config) -> None:
    usable = [measure.name for measure in BY_NAME.values() if measure.better and measure.name not in MACRO_F1]
    if not name:
        return
    if name not in usable:
        raise UserError(
            f"sweep.measure: {name!r} does not choose{did_you_mean(name, usable)}; these do: {', '.join(usable)}"
        )
    needs: dict[str, Iterable[str]] = {**MADE_FROM, "reward": config.rewards.weights}
    made = name.removesuffix(LENIENT)
    scored = made in get_args(ScoreName) and made not in MATCHES
    if lacking := set(needs.get(made, (made,) if scored else ())) - set(config.evaluation.scores):
        raise UserError(f"sweep.measure: {name} is made from {', '.join(sorted(lacking))}; add it to evaluation.scores")


def check_names(key: str, names: Iterable[str], taken: tuple[str, ...] = ()) -> None:
    """Raises UserError for a name that cannot be a folder's."""
    for name in names:
        wrong = not name or name != name.strip() or len(name) > LONGEST_NAME or name in taken
        if (
            wrong
            or name.startswith(".")
            or name.endswith(".json")
            or any(c in "/\\" or not c.isprintable() for c in name)
        ):
            raise UserError(f"{key}.{name}: this name cannot be a folder's here; choose another")
