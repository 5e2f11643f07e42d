"""Arms, each a system with an adapter on a question set: where they are kept, how they are sampled and scored.

    arms/<split>/<system>-<digest>/<policy>/            an arm's trajectories (sampling/store.py), one JSONL segment
    arms/<split>/<system>-<digest>/<policy>/scores/     its scores

An arm's folder follows from what the arm is, so evaluations, promotions and sweeps that ask for the same arm find the
same trajectories and scores. The digest is of the system's settings and of how it is sampled; the policy is 'base', or
the adapter's digest, followed by '-seed+1' where the seeds are others (evaluation.controls). Any number of processes
may work on different arms at once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agents.core.context import RunContext
from agents.core.system import load_system
from evaluation.comparisons import make_arm
from evaluation.measures.measures import Scores
from evaluation.measures.statistics import RESAMPLES
from evaluation.question_sets import QuestionSet, split_of
from evaluation.results import Arm
from questions.leakage import check_adapter_leakage
from questions.load import load_split
from ratchet.config import (
    Config,
    Environment,
    EvaluationConfig,
    LeakageConfig,
    QuestionsConfig,
    RewardsConfig,
    SystemConfig,
)
from ratchet.config.sampling import TOP_P
from ratchet.errors import UserError
from ratchet.plugins import short_name
from ratchet.records import Question, Trajectory, content_key
from ratchet.runfolder import RunFolder
from ratchet.selection import Score
from ratchet.text import NORMALISATIONS
from rewards.reward import judge_of
from rewards.store import stored_scores
from sampling.passes import Pass
from sampling.pool import sample
from sampling.store import Manifest, TrajectoryStore

State = Literal["done", "part", "missing"]


@dataclass(frozen=True)
class ArmPlan:
    """What one arm runs, and where its trajectories and scores are stored."""

    name: str
    """The arm's name in tables."""
    system: SystemConfig
    asked: QuestionSet
    adapter: Path | None
    policy: str
    """'base', or the adapter's digest."""
    store: TrajectoryStore
    trained_on: Path | None = None
    """The adapter folder that says which questions were trained on, which this arm must not ask; None skips the
    check."""
    group: int = 0
    """Arms of a lower group are sampled first: those of one adapter together, where a server holds only a few."""
    seed_offset: int = 0
    """Added to the config's seed."""

    @property
    def scores(self) -> Path:
        return scores_path(self.store)


@dataclass(frozen=True)
class ArmStatus:
    """How much of an arm is on disk."""

    state: State
    note: str = ""
    trajectories: Sequence[Trajectory] = ()
    scores: Scores = field(default_factory=dict)
    failed: int = 0
    """Trajectories that failed by a fault: tables count them, and the next run of the arm samples them again."""


ScoreArm = Callable[[ArmPlan, Sequence[Trajectory]], Scores]
"""Scores an arm's trajectories. What is stored is not scored again."""


@dataclass(frozen=True)
class ArmSettings:
    """What the arms of a run are planned, sampled, scored and measured by."""

    environment: Environment
    system: SystemConfig
    questions: QuestionsConfig
    evaluation: EvaluationConfig
    rewards: RewardsConfig
    concurrency: int | None = None
    """The most trajectories in flight; default: as many as the models take."""

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.environment.run

    @property
    def seed(self) -> int:
        return self.environment.seed

    def question_set(self, name: str, asked_by: str = "--split") -> QuestionSet:
        """Load a split or benchmark. Raises UserError, which starts with `asked_by`, where it is unknown or
        unreadable."""
        split = split_of(self.questions, self.evaluation.benchmarks, name, asked_by)
        loaded = load_split(split, self.seed)
        title = (short_name(split.benchmark) or name) + ("" if split.order == "file" else f", {split.order}")
        return QuestionSet(name, title, loaded.questions, loaded.digest)

    def store(self, split: str, system: SystemConfig, policy: str, seed_offset: int = 0) -> TrajectoryStore:
        """Where an arm is kept, whoever asks for it."""
        identity = load_system(system).identity
        digest = content_key(identity, self.evaluation.temperature, TOP_P)
        name = f"{policy}-seed{seed_offset:+d}" if seed_offset else policy
        return TrajectoryStore(self.run / "arms" / split / f"{short_name(system.name)}-{digest[:8]}" / name)


def arm_settings(config: Config) -> ArmSettings:
    """The settings of a config's arms."""
    environment, concurrency = config.environment, config.sampling.concurrency
    return ArmSettings(environment, config.system, config.questions, config.evaluation, config.rewards, concurrency)


def scores_path(store: TrajectoryStore) -> Path:
    """The folder that holds an arm's scores."""
    return store.folder / "scores"


def is_planned(evaluation: EvaluationConfig, arm: ArmPlan, manifest: Manifest | None) -> bool:
    """Whether the manifest plans the arm's questions, with as many samples as the config says."""
    wanted = (arm.asked.digest, evaluation.samples_of(arm.name))
    return manifest is not None and (manifest.questions, manifest.samples) == wanted


def arm_status(evaluation: EvaluationConfig, arm: ArmPlan) -> ArmStatus:
    """How much of an arm is on disk, without opening a model. It does not notice a model or index changed in place."""
    manifest = arm.store.manifest()
    keys = manifest.keys if manifest else arm.store.keys()  # raises where trajectories lie without a manifest
    stored = arm.store.load(keys) if is_planned(evaluation, arm, manifest) else []
    if not stored or len(stored) < len(keys):
        started = any(path.stat().st_size for path in arm.store.segments)
        return ArmStatus("part", "not all sampled") if started else ArmStatus("missing")
    names = evaluation.scores
    scores = stored_scores(arm.scores, set(keys))
    if lacking := sum((key, name) not in scores for key in keys for name in names):
        return ArmStatus("part", f"{lacking} of {len(keys) * len(names)} scores are missing", stored, scores)
    failed = sum(trajectory.status == "failed" for trajectory in stored)
    return ArmStatus("done", f"{failed} failed" if failed else "", stored, scores, failed)


def sample_arms(settings: ArmSettings, arms: Iterable[ArmPlan], title: str) -> None:
    """Sample the arms' missing trajectories, in one pool."""
    by_folder = {arm.store.folder: arm for arm in arms}  # two names may mean the same arm
    passes = [
        Pass(
            arm.system,
            RunContext(
                temperature=settings.evaluation.temperature,
                frozen_temperature=settings.evaluation.temperature,
                top_p=TOP_P,
                adapter=None if arm.adapter is None else str(arm.adapter),
                policy=arm.policy,
                scope=folder.relative_to(settings.run).as_posix(),  # What one arm remembers must not help another.
            ),
            arm.asked.questions,
            settings.evaluation.samples_of(arm.name),
            folder,
            group=arm.group,
            seed_offset=arm.seed_offset,
        )
        for folder, arm in by_folder.items()
    ]
    sample(settings.environment, passes, title, settings.concurrency)


def measured_arm(
    settings: ArmSettings,
    name: str,
    system: str,
    policy: str,
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    scores: Scores,
) -> Arm:
    """The measures of an arm under this name, from its trajectories and scores."""
    evaluation, rewards = settings.evaluation, settings.rewards
    return make_arm(
        name,
        system,
        policy,
        questions,
        trajectories,
        scores,
        evaluation.scores,
        rewards.weights,
        RESAMPLES,
        settings.seed,
        rewards.select.keep_status,
        NORMALISATIONS[rewards.normalisation],
    )


def check_leaks(modes: LeakageConfig, arms: Iterable[ArmPlan]) -> None:
    """Raises UserError where an adapter was trained on questions that it would be asked; prints warnings."""
    printed: set[str] = set()
    for arm in arms:
        if arm.trained_on is None:
            continue
        strict = arm.asked.name not in ("train", "dev")
        for warning in check_adapter_leakage(arm.trained_on, arm.asked.questions, modes, arm.asked.name, strict):
            if warning not in printed:
                print(warning, file=sys.stderr)
                printed.add(warning)


@contextlib.contextmanager
def open_scoring(settings: ArmSettings) -> Iterator[ScoreArm]:
    """A function that scores one arm: it reuses stored scores, and opens the judge at most once for all arms.

    Raises UserError where a score needs a judge that the config does not have.
    """
    from rewards.scoring import Scorer  # late: rebuilding a table needs no judge

    environment, names = settings.environment, settings.evaluation.scores
    judge_of(settings.rewards, environment.models, names)
    nuggets = RunFolder(environment.run).nuggets
    with Scorer(settings.rewards, environment.models, environment.embedder, environment.seed, nuggets) as scorer:
        yield lambda arm, sampled: scorer.score(arm.asked.questions, sampled, names, arm.scores)


def arm_trajectories(store: TrajectoryStore) -> list[Trajectory]:
    """The arm's trajectories in its order, without their conversations. Raises UserError where some are missing."""
    keys = store.keys()
    trajectories = store.load(keys)
    if gone := len(keys) - len(trajectories):
        raise UserError(f"{store.folder}: {gone} trajectories are gone; run `ratchet evaluate` to sample them again")
    return trajectories


def stored_arm_scores(stores: Iterable[TrajectoryStore]) -> Scores:
    """Every stored score of the arms' trajectories."""
    scores: dict[tuple[str, str], Score] = {}
    for store in stores:
        scores |= stored_scores(scores_path(store), set(store.keys()))
    return scores
