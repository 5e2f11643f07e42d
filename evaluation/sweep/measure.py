"""The measure that chooses a sweep's checkpoint: `sweep.measure` of a config."""

from __future__ import annotations

from collections.abc import Iterable

from evaluation.measures.measures import AS_RETURNED, BY_NAME, LENIENT, MATCHES, strict_form
from evaluation.results import MACRO_F1
from ratchet.config import Config
from ratchet.errors import UserError, did_you_mean
from rewards.reward import known_rewards

SCORES_BEHIND = {
    "correctness_f1": ("correctness", "precision"),
    "unattributed": ("faithfulness",),
    "unattributed_rule": ("lexical_support",),
}
"""Scores behind the measures that are no scores themselves (`evaluation.measures.measures`)."""


def check_measure(config: Config) -> None:
    """Raises UserError for a measure that cannot choose, or whose scores are not computed. `load_config` asks."""
    name = config.sweep.measure
    usable = [measure.name for measure in BY_NAME.values() if measure.better and measure.name not in MACRO_F1]
    if not name:
        return
    outside = [score for score in config.evaluation.scores if score not in BY_NAME]
    usable += [score + form for score in outside for form in ("", AS_RETURNED, LENIENT)]
    if name not in usable:
        raise UserError(
            f"sweep.measure: {name!r} does not choose{did_you_mean(name, usable)}; these do: {', '.join(usable)}"
        )
    needs: dict[str, Iterable[str]] = {**SCORES_BEHIND, "reward": config.rewards.weights}
    score = strict_form(name)
    scored = score in known_rewards() and score not in MATCHES
    if lacking := set(needs.get(score, (score,) if scored else ())) - set(config.evaluation.scores):
        raise UserError(f"sweep.measure: {name} is made from {', '.join(sorted(lacking))}; add it to evaluation.scores")
