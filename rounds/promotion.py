"""Whether a round's adapter replaces its parent: it has to be better on dev, by a test paired by question.

The parent is the adapter that the round sampled with, at first the base model. What was decided stays decided: the
next rounds are built on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from pathlib import Path
from statistics import NormalDist, stdev

from ratchet.core.config import Config
from ratchet.core.files import write_json
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.evaluation.arm_folders import results_path
from ratchet.evaluation.comparisons import measure_difference
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.measures.measures import direction, measure_of
from ratchet.evaluation.measures.statistics import paired
from ratchet.evaluation.results import BASE, PARENT, TRAINED
from ratchet.evaluation.round_arms import evaluate, run_arms
from ratchet.inference.adapters import adapter_digest
from ratchet.rounds.promoted import SPLIT, kept_any, last_promoted, read_promotion
from ratchet.rounds.records import Promotion

MIN_GAIN, POWER = 0.05, 0.8
"""The gain that dev should be large enough to show, and with which probability."""


def decide(difference: Difference, level: float, measure: str) -> tuple[bool, str]:
    """(promoted, the reason in a sentence) for a candidate's paired difference to its parent."""
    title = measure_of(measure).short
    if difference.mean is None or difference.p is None or difference.before is None or difference.after is None:
        return False, f"Not promoted: no question of dev has a value of {title} from both."
    numbers = (
        f"{title} {difference.before:.3f} -> {difference.after:.3f}: {difference.mean:+.3f}, p = {difference.p:.3g} on "
        f"{difference.n} questions of dev"
    )
    if difference.mean <= 0:
        return False, f"Not promoted, since it is not better than its parent: {numbers}."
    if direction(difference, measure, level) != "better":
        why = f"p is not below {level:g}" if difference.p >= level else "the 95% interval holds 0"
        return False, f"Not promoted, since chance may explain the gain ({why}): {numbers}."
    return True, f"Promoted: {numbers}."


def too_few_questions(differences: Sequence[float], level: float) -> str:
    """A sentence where the questions with these paired differences are too few to show MIN_GAIN at this level; else
    empty, as where their spread is not known.

    By the normal approximation, n questions whose differences spread by sd show a mean gain g with probability POWER
    when g = (z(1 - level / 2) + z(POWER)) * sd / sqrt(n) (Cohen, Statistical Power Analysis, 1988; for language
    systems Card and others, EMNLP 2020). Under about 30 questions the plan is optimistically biased.
    """
    n, normal = len(differences), NormalDist()
    spread = (normal.inv_cdf(1 - level / 2) + normal.inv_cdf(POWER)) * (stdev(differences) if n > 1 else 0.0)
    needed = max(2, ceil((spread / MIN_GAIN) ** 2)) if spread else 0
    if needed <= n:
        return ""
    shown = spread / sqrt(n)
    return (
        f"dev is too small to show a gain of {MIN_GAIN:g}: its {n} questions show one of "
        f"{shown:.2f} or more, and it takes {needed:,} (questions.dev)"
    )


def promote(config: Config, number: int, sampled: bool = False) -> Promotion:
    """Evaluate base, parent and candidate on dev where that is not done, and decide; or return what was decided.

    `sampled`: the arms were run before (`sample_arms`), and no agent's model is opened.
    """
    run, level = RunFolder(config.folder), config.rounds.level
    folder, parent = run.round(number), parent_adapter(run, number)
    parent_digest = adapter_digest(parent) if parent else BASE
    if not kept_any(folder):
        none = Promotion(
            round=number,
            candidate="",
            parent=parent_digest,
            split=SPLIT,
            measure="",
            base=None,
            difference=Difference(n=0),
            promoted=False,
            reason="No candidate: nothing that the round sampled was worth keeping.",
        )
        return _write_promotion(folder, none)
    candidate = adapter_digest(folder.adapter)
    decided, path = read_promotion(folder), results_path(folder, SPLIT)
    if decided and (decided.candidate, decided.parent) == (candidate, parent_digest) and path.exists():
        return decided
    [results] = evaluate(without_baselines(config), folder, [SPLIT], folder.adapter, parent, sampled)
    before, after = results.arm(PARENT if parent else BASE), results.arm(TRAINED)
    assert before is not None and after is not None
    difference = measure_difference(before, after, results.primary, config.seed)
    promoted, reason = decide(difference, level, results.primary)
    base = results.arms[0].measures.get(results.primary)
    pairs = paired(before.by_question(results.primary), after.by_question(results.primary))
    return _write_promotion(
        folder,
        Promotion(
            round=number,
            candidate=candidate,
            parent=parent_digest,
            split=SPLIT,
            measure=results.primary,
            base=base.mean if base else None,
            difference=difference,
            promoted=promoted,
            reason=reason,
            warning=too_few_questions([y - x for x, y in zip(*pairs, strict=True)], level),
        ),
    )


def sample_arms(config: Config, number: int) -> None:
    """Run base, parent and candidate on dev, and score nothing: before the judge's server takes the agents' place."""
    run = RunFolder(config.folder)
    folder = run.round(number)
    run_arms(without_baselines(config), folder, [SPLIT], folder.adapter, parent_adapter(run, number))


def parent_adapter(run: RunFolder, number: int) -> Path | None:
    """The adapter that a round samples with; None: the base model."""
    origin = last_promoted(run, before=number)
    return run.round(origin).adapter if origin else None


def without_baselines(config: Config) -> Config:
    """The settings without baselines and trained controls, which take no part in choosing. The base model sampled
    again stays: it shows how many questions change by chance, and all rounds share it."""
    controls = tuple(name for name in config.evaluation.controls if name == "base-again")
    evaluation = config.evaluation.model_copy(update={"baselines": {}, "skip": {}, "controls": controls})
    return config.model_copy(update={"evaluation": evaluation})


def _write_promotion(folder: RoundFolder, promotion: Promotion) -> Promotion:
    write_json(folder.promotion, promotion.model_dump(mode="json"))
    return promotion
