"""Arms, each a system with an adapter on a question set: where they are kept, how much of each is on disk, and how they
are sampled and scored.

    arms/<split>/<system>-<digest>/<policy>/            an arm's trajectories (sampling/store.py), one JSONL segment
    arms/<split>/<system>-<digest>/<policy>/scores/     its scores
    round-N/evaluation/arms-<split>.json                the arms that the round was last evaluated with
    round-N/evaluation/results.json                     the table (results-<split>.json for other splits)

An arm's folder follows from what the arm is, so evaluations, promotions and sweeps that ask for the same arm find the
same trajectories and scores. The digest is of the system's settings and of how it is sampled; the policy is 'base', or
the adapter's digest, followed by '-seed+1' where the seeds are others (evaluation.controls). Any number of processes
may work on different arms at once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ratchet.agents.core.system import load_system
from ratchet.agents.core.task import RunContext
from ratchet.core.config import SPLITS, Config, EvaluationConfig, LeakageConfig, SplitConfig, SystemConfig
from ratchet.core.config.evaluation import FINAL
from ratchet.core.config.system import TOP_P
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.files import read_record
from ratchet.core.plugins import short_name
from ratchet.core.records import Question, Record, Trajectory, content_key
from ratchet.core.runfolder import RoundFolder
from ratchet.evaluation.measures.measures import Scores
from ratchet.questions.load import load_split
from ratchet.rewards.reward import judge_of
from ratchet.rewards.store import current_scores
from ratchet.sampling.store import Manifest, Trajectories, TrajectoryStore


@dataclass(frozen=True)
class QuestionSet:
    """The questions of a split or benchmark, with their digest and the title that tables show."""

    name: str
    title: str
    questions: Sequence[Question]
    digest: str


def split_of(config: Config, name: str, asked_by: str = "--split") -> SplitConfig:
    """The split or benchmark of this name. Raises UserError, which starts with `asked_by`."""
    splits: dict[str, SplitConfig] = {
        name: config.splits[key] for name in SPLITS if (key := f"questions.{name}") in config.splits
    }
    for taken in config.evaluation.benchmarks:
        if taken in SPLITS or taken.startswith(".") or "/" in taken:
            raise UserError(f"evaluation.benchmarks.{taken}: this name cannot be used for a benchmark; choose another")
    splits |= config.evaluation.benchmarks
    if name not in splits:
        raise UserError(f"{asked_by} {name}: no such split or benchmark in the config{did_you_mean(name, splits)}")
    return splits[name]


def question_set(config: Config, name: str, asked_by: str = "--split") -> QuestionSet:
    """Load a split or benchmark. Raises UserError, which starts with `asked_by`, where it is unknown or unreadable."""
    split = split_of(config, name, asked_by)
    loaded = load_split(split, config.seed)
    own = name if name in config.evaluation.benchmarks else short_name(split.benchmark) or name
    title = own + ("" if split.order == "file" else f", {split.order}")
    return QuestionSet(name, title, loaded.questions, loaded.digest)


def arm_store(config: Config, split: str, system: SystemConfig, policy: str, seed_offset: int = 0) -> TrajectoryStore:
    """The store of an arm, the same for everyone who asks for it."""
    digest = content_key(load_system(system).identity, config.evaluation.temperature, TOP_P)
    name = f"{policy}-seed{seed_offset:+d}" if seed_offset else policy
    return TrajectoryStore(config.folder / "arms" / split / f"{short_name(system.name)}-{digest[:8]}" / name)


def scores_path(store: TrajectoryStore) -> Path:
    """The folder of an arm's scores."""
    return store.folder / "scores"


class RoundArms(Record):
    """round-N/evaluation/arms-<split>.json"""

    arms: dict[str, str]
    """By arm name, its folder below the run folder, in the order of the table."""


def results_path(folder: RoundFolder, split: str) -> Path:
    """The file of a round's results on a split."""
    return folder.evaluation / ("results.json" if split == FINAL else f"results-{split}.json")


def arms_file(folder: RoundFolder, split: str) -> Path:
    """The file of a round's arms on a split."""
    return folder.evaluation / f"arms-{split}.json"


def read_arms(folder: RoundFolder, split: str) -> dict[str, TrajectoryStore]:
    """By name, the arms of the round's last evaluation on the split; empty before the first one."""
    record = read_record(arms_file(folder, split), RoundArms, "delete it and run `ratchet evaluate` again")
    run = folder.path.parent
    return {name: TrajectoryStore(run / place) for name, place in record.arms.items()} if record else {}


def evaluated_splits(folder: RoundFolder) -> list[str]:
    """The question sets that the round's arms were started on."""
    return sorted(path.stem.removeprefix("arms-") for path in folder.evaluation.glob("arms-*.json"))


# How much of each is on disk, how they are sampled and scored

State = Literal["done", "part", "missing"]


@dataclass(frozen=True)
class ArmPlan:
    """The plan of one arm: what it runs, and where its trajectories and scores are stored."""

    name: str
    system: SystemConfig
    asked: QuestionSet
    adapter: Path | None
    policy: str
    """'base', or the adapter's digest."""
    store: TrajectoryStore
    trained_on: Path | None = None
    """The adapter folder whose training questions this arm must not ask; None skips the check."""
    group: int = 0
    """Arms of a lower group are sampled first: those of one adapter together, where a server holds only a few."""
    seed_offset: int = 0

    @property
    def scores(self) -> Path:
        return scores_path(self.store)


@dataclass(frozen=True)
class ArmStatus:
    """The part of an arm that is on disk."""

    state: State
    note: str = ""
    trajectories: Sequence[Trajectory] = ()
    scores: Scores = field(default_factory=dict)
    failed: int = 0
    """Trajectories that failed by a fault: tables count them, and the next run of the arm samples them again."""


ScoreArm = Callable[[ArmPlan], Scores]
"""Scores an arm's trajectories. What is stored is not scored again."""


def is_planned(evaluation: EvaluationConfig, arm: ArmPlan, manifest: Manifest | None) -> bool:
    """True where the manifest plans the arm's questions, with as many samples as the config says."""
    wanted = (arm.asked.digest, evaluation.samples)
    return manifest is not None and (manifest.questions, manifest.samples) == wanted


def arm_status(evaluation: EvaluationConfig, arm: ArmPlan) -> ArmStatus:
    """Read what is on disk of an arm, without opening a model. A model or index changed in place is not noticed."""
    manifest = arm.store.manifest()
    keys = manifest.keys if manifest else arm.store.keys()  # raises where trajectories lie without a manifest
    stored = arm.store.load(keys) if is_planned(evaluation, arm, manifest) else []
    if not stored or len(stored) < len(keys):
        started = any(file.size for file in arm.store.segments)
        return ArmStatus("part", "not all sampled") if started else ArmStatus("missing")
    names = evaluation.scores
    scores = current_scores(arm.scores, set(keys))
    if lacking := sum((key, name) not in scores for key in keys for name in names):
        return ArmStatus("part", f"{lacking} of {len(keys) * len(names)} scores are missing", stored, scores)
    failed = sum(trajectory.status == "failed" for trajectory in stored)
    return ArmStatus("done", f"{failed} failed" if failed else "", stored, scores, failed)


def sample_arms(config: Config, arms: Iterable[ArmPlan], title: str) -> None:
    """Sample the arms' missing trajectories, in one pool."""
    by_folder = {arm.store.folder: arm for arm in arms}  # two names may mean the same arm
    from ratchet.sampling.pool import Pass, sample  # late: the status of a run needs no engine

    passes = [
        Pass(
            arm.system,
            RunContext(
                temperature=config.evaluation.temperature,
                frozen_temperature=config.evaluation.temperature,
                top_p=TOP_P,
                adapter=None if arm.adapter is None else str(arm.adapter),
                policy=arm.policy,
                scope=folder.relative_to(config.folder).as_posix(),  # What one arm remembers must not help another.
            ),
            arm.asked.questions,
            config.evaluation.samples,
            folder,
            group=arm.group,
            seed_offset=arm.seed_offset,
        )
        for folder, arm in by_folder.items()
    ]
    sample(config, passes, title)


def check_leaks(modes: LeakageConfig, arms: Iterable[ArmPlan]) -> None:
    """Raises UserError where an adapter was trained on questions that it would be asked; prints warnings."""
    from ratchet.questions.leakage import check_adapter_leakage

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
def open_scoring(config: Config) -> Iterator[ScoreArm]:
    """A function that scores one arm: it reuses stored scores, and opens the judge at most once for all arms.

    Raises UserError where a score needs a judge that the config does not have.
    """
    from ratchet.rewards.scoring import Scorer  # late: rebuilding a table needs no judge

    names = config.evaluation.scores
    judge_of(config, names)
    with Scorer(config) as scorer:
        yield lambda arm: scorer.score(arm.asked.questions, open_arm(arm.store), names, arm.scores)


def arm_trajectories(store: TrajectoryStore) -> list[Trajectory]:
    """The arm's trajectories in its order, without their conversations. Raises UserError where some are missing."""
    trajectories = store.load()
    _check_complete(store, trajectories)
    return trajectories


def open_arm(store: TrajectoryStore) -> Trajectories:
    """The arm's whole trajectories in its order. Raises UserError where some are missing."""
    trajectories = store.open()
    _check_complete(store, trajectories)
    return trajectories


def _check_complete(store: TrajectoryStore, trajectories: Sized) -> None:
    if gone := len(store.keys()) - len(trajectories):
        raise UserError(f"{store.folder}: {gone} trajectories are gone; run `ratchet evaluate` to sample them again")
