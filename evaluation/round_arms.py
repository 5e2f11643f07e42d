"""The arms of a round (base, adapter, and what they are compared with), and the table of their results."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ratchet.core.config import SPLITS, Config, EvaluationConfig, SystemConfig, TrainedControl
from ratchet.core.errors import UserError
from ratchet.core.files import write_record
from ratchet.core.records import Score
from ratchet.core.runfolder import RoundFolder
from ratchet.core.text import NORMALISATIONS
from ratchet.evaluation.arms import (
    ArmPlan,
    RoundArms,
    arm_store,
    arm_trajectories,
    arms_file,
    check_leaks,
    is_planned,
    open_scoring,
    question_set,
    read_arms,
    results_path,
    sample_arms,
    scores_path,
)
from ratchet.evaluation.comparisons import (
    best_baseline,
    compare,
    label_floor,
    make_arm,
    primary_measure,
    selection_gain,
)
from ratchet.evaluation.headline import verdict
from ratchet.evaluation.measures.complementarity import complementarity
from ratchet.evaluation.measures.measures import Scores
from ratchet.evaluation.measures.statistics import RESAMPLES
from ratchet.evaluation.results import (
    BASE,
    BASE_AGAIN,
    GOLD,
    PARENT,
    RANDOM,
    RESERVED,
    TRAINED,
    Results,
)
from ratchet.inference.adapters import is_adapter
from ratchet.rewards.check import check_corpus
from ratchet.rewards.store import stored_scores
from ratchet.sampling.pool import policy_name
from ratchet.sampling.store import TrajectoryStore


def plan(
    config: Config,
    splits: Sequence[str],
    adapter: Path | None,
    parent: Path | None = None,
    controls: Mapping[str, Path] | None = None,
) -> list[ArmPlan]:
    """The arms of a round on every split: base, `parent`, `adapter` and `controls` where they are given, base again
    where the config asks for it, and the config's baselines, on the base model or with their own adapter.

    `parent` is the adapter that `adapter` has to improve on; `controls` are adapters by arm.
    """
    evaluation, system = config.evaluation, config.system
    for name in evaluation.baselines:
        if name in RESERVED or name.startswith((".", "scores-")) or "/" in name:
            raise UserError(f"evaluation.baselines.{name}: this name cannot be used for a baseline; choose another")
    adapters = {PARENT: parent, TRAINED: adapter, **(controls or {})}
    runs: list[tuple[str, SystemConfig, Path | None]] = [(BASE, system, None)]
    runs += [(name, system, folder) for name, folder in adapters.items() if folder is not None]
    runs += [(BASE_AGAIN, system, None)] if "base-again" in evaluation.controls else []
    trained = baseline_adapters(evaluation)
    runs += [(name, baseline, trained.get(name)) for name, baseline in evaluation.baselines.items()]
    policies = {folder: policy_name(folder) for _, _, folder in runs}
    offsets = {BASE_AGAIN: 1}
    return [
        ArmPlan(
            name,
            arm_system,
            asked,
            folder,
            policies[folder],
            arm_store(config, asked.name, arm_system, policies[folder], offsets.get(name, 0)),
            trained_on=folder if name in (TRAINED, RANDOM, GOLD, *trained) else None,
            seed_offset=offsets.get(name, 0),
        )
        for asked in [question_set(config, split) for split in splits]
        for name, arm_system, folder in runs
        if asked.name not in evaluation.skip.get(name, ())
    ]


def baseline_adapters(evaluation: EvaluationConfig) -> dict[str, Path]:
    """The adapter folders of the baselines that have one. Raises UserError where one is missing."""
    adapters = {name: Path(folder) for name, folder in evaluation.adapters.items()}
    for name, folder in adapters.items():
        if name in evaluation.baselines and not is_adapter(folder):
            raise UserError(
                f"evaluation.adapters.{name}: {folder}: there is no adapter here; train it first (ratchet selftrain "
                "with a config of this system), or remove the key"
            )
    return adapters


def run_arms(
    config: Config,
    folder: RoundFolder,
    splits: Sequence[str],
    adapter: Path | None,
    parent: Path | None = None,
    sampled: bool = False,
) -> list[ArmPlan]:
    """Sample the missing trajectories of every arm of the round, without scoring.

    `sampled`: all arms were sampled before, so no model is opened. Raises UserError where one was not.
    """
    arms = plan(config, splits, adapter, parent, _controls(config.evaluation, folder, adapter))
    if not sampled:
        check_leaks(config.questions.leakage, arms)
        sections = {
            arm.asked.name: "questions" if arm.asked.name in SPLITS else "evaluation.benchmarks" for arm in arms
        }
        asked = {f"{sections[arm.asked.name]}.{arm.asked.name}": arm.asked.questions for arm in arms}
        for warning in check_corpus(asked, config.index, config.questions.leakage.corpus):
            print(warning, file=sys.stderr)
    elif unplanned := [arm for arm in arms if not is_planned(config.evaluation, arm, arm.store.manifest())]:
        arm = unplanned[0]
        raise UserError(
            f"{arm.store.folder}: {arm.name}/{arm.asked.name}: this arm was not sampled yet; run the same command with "
            "--phase sample first"
        )
    for split in splits:
        record_arms(folder, split, arms)
    if not sampled:
        sample_arms(config, arms, f"evaluate {len({arm.name for arm in arms})} arm(s) on {', '.join(splits)}")
    return arms


def _controls(evaluation: EvaluationConfig, folder: RoundFolder, adapter: Path | None) -> dict[str, Path]:
    """By arm, the adapters of the round's controls that the config asks for, where `adapter` is the round's own."""
    if adapter is None or adapter.resolve() != folder.adapter.resolve():
        return {}
    names: dict[TrainedControl, str] = {"random": RANDOM, "gold": GOLD}
    adapters = {}
    for name in evaluation.trained_controls:
        adapters[names[name]] = control = folder.control(name).adapter
        if not is_adapter(control):
            raise UserError(
                f"{control}: there is no adapter here, and evaluation.controls asks for the control {name}; train it "
                f"first (ratchet train --control {name}), or remove {name} from evaluation.controls"
            )
    return adapters


def record_arms(folder: RoundFolder, split: str, arms: Iterable[ArmPlan]) -> None:
    """Record which arms the round's table of the split compares."""
    stores = {arm.name: arm.store for arm in arms if arm.asked.name == split}
    run = folder.path.parent
    places = {name: store.folder.relative_to(run).as_posix() for name, store in stores.items()}
    write_record(arms_file(folder, split), RoundArms(arms=places))


def evaluate(
    config: Config,
    folder: RoundFolder,
    splits: Sequence[str],
    adapter: Path | None,
    parent: Path | None = None,
    sampled: bool = False,
) -> list[Results]:
    """Sample (in one pool), score and compare every arm on every split; stored results are reused.

    `sampled`: `run_arms` sampled all arms before, and no agent's model is opened: the judge may need the memory.
    """
    results = []
    with open_scoring(config) as score:  # first, so that a missing judge is named before anything is sampled
        arms = run_arms(config, folder, splits, adapter, parent, sampled)
        for split in splits:
            scores: dict[tuple[str, str], Score] = {}
            for arm in arms:
                if arm.asked.name == split:
                    scores.update(score(arm))
            results += build_results(config, folder, [split], scores)
    return results


def build_results(
    config: Config, folder: RoundFolder, splits: Sequence[str], fresh: Scores | None = None
) -> list[Results]:
    """Build and write the results from stored trajectories and scores, without opening a model.

    `fresh`: the scores of this run, with the unfinished ones, which are not stored.
    """
    results = []
    named = {*RESERVED, *config.evaluation.baselines}
    for split in splits:
        stores = {name: store for name, store in read_arms(folder, split).items() if name in named}
        if BASE not in stores:
            raise UserError(
                f"{arms_file(folder, split)}: the base arm was not run yet; run `ratchet evaluate` with this split"
            )
        of_arms = (
            [stored_scores(scores_path(store), set(store.keys())) for store in stores.values()] if not fresh else []
        )
        scores = fresh or {at: score for of_arm in of_arms for at, score in of_arm.items()}
        results.append(_compared(config, folder.number, split, stores, scores))
        write_record(results_path(folder, split), results[-1])
    return results


def _compared(
    config: Config, number: int, split: str, stores: Mapping[str, TrajectoryStore], scores: Scores
) -> Results:
    asked = question_set(config, split)
    questions = asked.questions
    trajectories = {name: arm_trajectories(store) for name, store in stores.items()}
    primary, normalise = primary_measure(config, questions), NORMALISATIONS[config.rewards.normalisation]
    arms = [
        make_arm(config, name, *store.system_and_policy(), questions, trajectories[name], scores)
        for name, store in stores.items()
    ]
    seed, also_trained = config.seed, config.evaluation.adapters
    comparisons = [compare(arms[0], arm, questions, primary, seed) for arm in arms[1:]]
    best = best_baseline(arms, primary, seed, without=also_trained)
    rival = best_baseline(arms, primary, seed, only=also_trained)
    floor, selection = label_floor(questions), selection_gain(arms, primary, seed)
    trained = next((comparison for comparison in comparisons if comparison.arm == TRAINED), None)
    headline, numbers = verdict(trained, primary, best, floor, selection, rival)
    return Results(
        round=number,
        split=split,
        title=asked.title,
        questions=len(questions),
        samples=config.evaluation.samples,
        seed=config.seed,
        resamples=RESAMPLES,
        primary=primary,
        arms=tuple(arms),
        comparisons=tuple(comparisons),
        complementarity={
            name: shares
            for name, sampled in trajectories.items()
            if (shares := complementarity(questions, sampled, normalise)) is not None
        },
        label_floor=floor,
        best_baseline=best,
        trained_baseline=rival,
        selection=selection,
        headline=headline,
        numbers=numbers,
    )
