"""Base against trained on held-out questions: run every arm, score it, compare it, and keep what is needed to do so
again without a model.

    round-N/evaluation/<arm>/<split>/        trajectories, one JSONL segment per writer
    round-N/evaluation/<arm>/<split>.json    which trajectories make up the arm
    round-N/evaluation/scores-<split>/       scores of all arms together, so that they share their nuggets
    round-N/evaluation/results.json          the table (results-<split>.json for a split other than the config's)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agents.core.dialogues import Setting
from evaluation.measures.complementarity import complementarity
from evaluation.measures.measures import Scores
from evaluation.results import (
    BASE,
    PARENT,
    TRAINED,
    Arm,
    Results,
    compare,
    make_arm,
    primary_measure,
    verdict,
    write_results,
)
from questions.guard import check_adapter
from questions.load import load_questions
from ratchet.config import Config, SplitConfig, SystemConfig
from ratchet.errors import UserError, did_you_mean
from ratchet.files import read_record, write_json
from ratchet.records import Question, Record, Trajectory
from ratchet.runfolder import RoundFolder
from rewards.store import stored_scores
from sampling.pool import Pass, policy_name, sample
from sampling.store import TrajectoryStore


@dataclass(frozen=True)
class ArmPlan:
    """What one arm runs."""

    name: str
    system: SystemConfig
    adapter: Path | None = None


class ArmRecord(Record):
    """Which stored trajectories make up an arm: a folder may also hold those of an earlier adapter."""

    name: str
    system: str
    policy: str
    keys: tuple[str, ...]


def results_path(folder: RoundFolder, config: Config, split: str) -> Path:
    return folder.evaluation / ("results.json" if split == config.evaluation.split else f"results-{split}.json")


def splits_of(config: Config) -> list[str]:
    """What is evaluated where nothing else is asked for: the config's split, and its benchmarks."""
    return [config.evaluation.split, *config.evaluation.benchmarks]


def split_of(config: Config, name: str, asked_by: str = "--split") -> SplitConfig:
    """The split or benchmark of this name. Raises UserError that names what asked for it."""
    splits = {"train": config.questions.train, "dev": config.questions.dev, "test": config.questions.test}
    for taken in config.evaluation.benchmarks:
        if taken in splits or taken.startswith(".") or "/" in taken:
            raise UserError(f"evaluation.benchmarks.{taken}: this name cannot be used for a benchmark; choose another")
    splits |= config.evaluation.benchmarks
    if name not in splits:
        raise UserError(f"{asked_by} {name}: no such split or benchmark in the config{did_you_mean(name, splits)}")
    return splits[name]


def title_of(config: Config, name: str) -> str:
    """What a table calls a question set."""
    split = split_of(config, name)
    return (split.benchmark or name) + (", shuffled" if split.order == "shuffled" else "")


def plan(config: Config, adapter: Path | None, parent: Path | None = None) -> list[ArmPlan]:
    """Base, the adapter that `adapter` is to be better than, the adapter itself, each if there is one, and the
    config's baselines on the base model."""
    for name in config.evaluation.baselines:
        if name in (BASE, PARENT, TRAINED) or name.startswith((".", "scores-")) or "/" in name:
            raise UserError(f"evaluation.baselines.{name}: this name cannot be used for a baseline; choose another")
    for name in config.evaluation.skip:
        if name not in config.evaluation.baselines:
            raise UserError(
                f"evaluation.skip.{name}: no such baseline{did_you_mean(name, config.evaluation.baselines)}; base and "
                "adapter are run on every question set"
            )
    arms = [ArmPlan(BASE, config.system)]
    if parent is not None:
        arms.append(ArmPlan(PARENT, config.system, parent))
    if adapter is not None:
        arms.append(ArmPlan(TRAINED, config.system, adapter))
    return arms + [ArmPlan(name, system) for name, system in config.evaluation.baselines.items()]


def evaluate(
    config: Config,
    folder: RoundFolder,
    number: int,
    splits: Sequence[str],
    adapter: Path | None,
    parent: Path | None = None,
    sampled: bool = False,
) -> list[Results]:
    """Run, score and compare every arm on every split, all in one pool; what is stored already is not run again.

    `sampled`: every arm was run (`run_arms`), and no agent's model is to be opened: the judge may need the memory.
    """
    run = arms_that_were_run if sampled else run_arms
    questions, records = run(config, folder, splits, adapter, parent)
    from rewards.scoring import score_trajectories  # late: making a table again needs no judge

    results = []
    for split in splits:
        found = [(record, arm_trajectories(folder, record, split)) for record in records[split]]
        every = [trajectory for _, trajectories in found for trajectory in trajectories]
        scores = score_trajectories(
            config, questions[split], every, config.evaluation.scores, scores_path(folder, split)
        )
        results.append(_conclude(config, folder, number, split, questions[split], found, scores))
    return results


def run_arms(
    config: Config, folder: RoundFolder, splits: Sequence[str], adapter: Path | None, parent: Path | None = None
) -> tuple[dict[str, list[Question]], dict[str, list[ArmRecord]]]:
    """Sample what is missing of every arm, and score nothing; by split, its questions and what makes up its arms."""
    questions = {split: load_questions(split_of(config, split), config.seed) for split in splits}
    arms = plan(config, adapter, parent)
    if adapter is not None:
        for split, asked in questions.items():
            strict = split not in ("train", "dev")
            for warning in check_adapter(adapter, asked, config.questions.leakage, split, strict):
                print(warning, file=sys.stderr)
    return questions, _run(config, arms, questions, folder)


def arms_that_were_run(
    config: Config, folder: RoundFolder, splits: Sequence[str], adapter: Path | None, parent: Path | None = None
) -> tuple[dict[str, list[Question]], dict[str, list[ArmRecord]]]:
    """As `run_arms`, from what it left. Raises UserError where an arm was not run to its end."""
    records: dict[str, list[ArmRecord]] = {split: [] for split in splits}
    for split in splits:
        for arm in plan(config, adapter, parent):
            if split in config.evaluation.skip.get(arm.name, ()):
                continue
            record = read_arm(folder, arm.name, split)
            if record is None or record.policy != policy_name(arm.adapter):
                raise UserError(f"{arm_path(folder, arm.name, split)}: this arm was not sampled yet")
            records[split].append(record)
    return {split: load_questions(split_of(config, split), config.seed) for split in splits}, records


def tabulate(config: Config, folder: RoundFolder, number: int, splits: Sequence[str]) -> list[Results]:
    """Make the results again from the stored trajectories and scores; no model is opened."""
    results = []
    for split in splits:
        questions = load_questions(split_of(config, split), config.seed)
        arms = []
        # The round's parent was run where a promotion was decided, and its path is not asked for here.
        for arm in plan(config, folder.adapter, parent=folder.adapter):
            record = read_arm(folder, arm.name, split)
            if record is not None:
                arms.append((record, arm_trajectories(folder, record, split)))
            elif arm.name == BASE:
                raise UserError(
                    f"{arm_path(folder, BASE, split)}: the base arm was not run yet; run `python -m evaluation`"
                )
        wanted = {key for record, _ in arms for key in record.keys}
        scores = stored_scores(scores_path(folder, split), wanted)
        results.append(_conclude(config, folder, number, split, questions, arms, scores))
    return results


def read_arm(folder: RoundFolder, name: str, split: str) -> ArmRecord | None:
    """Which trajectories make up an arm; None before it was run to its end."""
    path = arm_path(folder, name, split).with_suffix(".json")
    return read_record(path, ArmRecord, "delete it and run `python -m evaluation` again")


def arm_trajectories(folder: RoundFolder, record: ArmRecord, split: str) -> list[Trajectory]:
    """The arm's trajectories in its order, without their conversations."""
    path = arm_path(folder, record.name, split)
    found = TrajectoryStore(path).load(record.keys)
    if len(found) < len(record.keys):
        raise UserError(
            f"{path}: {len(record.keys) - len(found)} trajectories are gone; `python -m evaluation` makes them again"
        )
    return found


def arm_path(folder: RoundFolder, name: str, split: str) -> Path:
    return folder.evaluation / name / split


def scores_path(folder: RoundFolder, split: str) -> Path:
    return folder.evaluation / f"scores-{split}"


def _run(
    config: Config, arms: Sequence[ArmPlan], questions: Mapping[str, Sequence[Question]], folder: RoundFolder
) -> dict[str, list[ArmRecord]]:
    """Run what is missing of every arm on every split; by split, which trajectories make up each arm."""
    settings = {
        arm.name: Setting(
            temperature=config.evaluation.temperature,
            frozen_temperature=config.evaluation.temperature,
            top_p=config.evaluation.top_p,
            adapter=None if arm.adapter is None else str(arm.adapter),
            policy=policy_name(arm.adapter),
        )
        for arm in arms
    }
    skip = config.evaluation.skip
    pairs = [(split, arm) for split in questions for arm in arms if split not in skip.get(arm.name, ())]
    samples = config.evaluation.samples
    passes = [
        Pass(
            arm.system,
            # What one arm remembers must not help another.
            replace(settings[arm.name], scope=f"{split}/{arm.name}"),
            questions[split],
            samples,
            arm_path(folder, arm.name, split),
        )
        for split, arm in pairs
    ]
    title = f"evaluate {len(arms)} arm(s) on {', '.join(questions)}"
    records: dict[str, list[ArmRecord]] = {split: [] for split in questions}
    for (split, arm), keys in zip(pairs, sample(config, passes, title), strict=True):
        record = ArmRecord(name=arm.name, system=arm.system.name, policy=settings[arm.name].policy, keys=tuple(keys))
        write_json(arm_path(folder, arm.name, split).with_suffix(".json"), record.model_dump(mode="json"))
        records[split].append(record)
    return records


def _conclude(
    config: Config,
    folder: RoundFolder,
    number: int,
    split: str,
    questions: Sequence[Question],
    found: Sequence[tuple[ArmRecord, list[Trajectory]]],
    scores: Scores,
) -> Results:
    names, resamples = config.evaluation.scores, config.evaluation.resamples
    primary = primary_measure(questions, names)
    arms: list[Arm] = [
        make_arm(
            record.name,
            record.system,
            record.policy,
            questions,
            trajectories,
            scores,
            names,
            {str(name): weight for name, weight in config.rewards.weights.items()},
            resamples,
            config.seed,
        )
        for record, trajectories in found
    ]
    base, others = arms[0], arms[1:]
    comparisons = tuple(compare(base, arm, questions, primary, resamples, config.seed) for arm in others)
    results = Results(
        round=number,
        split=split,
        title=title_of(config, split),
        questions=len(questions),
        samples=config.evaluation.samples,
        seed=config.seed,
        resamples=resamples,
        primary=primary,
        arms=tuple(arms),
        comparisons=comparisons,
        complementarity={
            record.name: shares
            for record, trajectories in found
            if (shares := complementarity(questions, trajectories)) is not None
        },
        verdict=verdict(next((c for c in comparisons if c.arm == TRAINED), None), primary),
    )
    write_results(results_path(folder, config, split), results)
    return results
