"""The question sets that can be evaluated, and where arms, each a system with an adapter on a question set, are kept.

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

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.agents.core.system import load_system
from ratchet.core.config import SPLITS, Config, SplitConfig, SystemConfig
from ratchet.core.config.evaluation import FINAL
from ratchet.core.config.sampling import TOP_P
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.files import read_record
from ratchet.core.plugins import short_name
from ratchet.core.records import Question, Record, content_key
from ratchet.core.runfolder import RoundFolder
from ratchet.questions.load import load_split
from ratchet.sampling.store import TrajectoryStore


@dataclass(frozen=True)
class QuestionSet:
    """The questions of a split or benchmark, with their digest and the title that tables show."""

    name: str
    title: str
    questions: Sequence[Question]
    digest: str


def split_of(config: Config, name: str, asked_by: str = "--split") -> SplitConfig:
    """The split or benchmark of this name. Raises UserError, which starts with `asked_by`."""
    splits: dict[str, SplitConfig] = {split: getattr(config.questions, split) for split in SPLITS}
    for taken in config.evaluation.benchmarks:
        if taken in splits or taken.startswith(".") or "/" in taken:
            raise UserError(f"evaluation.benchmarks.{taken}: this name cannot be used for a benchmark; choose another")
    splits |= config.evaluation.benchmarks
    if name not in splits:
        raise UserError(f"{asked_by} {name}: no such split or benchmark in the config{did_you_mean(name, splits)}")
    return splits[name]


def question_set(config: Config, name: str, asked_by: str = "--split") -> QuestionSet:
    """Load a split or benchmark. Raises UserError, which starts with `asked_by`, where it is unknown or unreadable."""
    split = split_of(config, name, asked_by)
    loaded = load_split(split, config.seed)
    title = (short_name(split.benchmark) or name) + ("" if split.order == "file" else f", {split.order}")
    return QuestionSet(name, title, loaded.questions, loaded.digest)


def arm_store(config: Config, split: str, system: SystemConfig, policy: str, seed_offset: int = 0) -> TrajectoryStore:
    """Where an arm is kept, whoever asks for it."""
    digest = content_key(load_system(system).identity, config.evaluation.temperature, TOP_P)
    name = f"{policy}-seed{seed_offset:+d}" if seed_offset else policy
    return TrajectoryStore(config.folder / "arms" / split / f"{short_name(system.name)}-{digest[:8]}" / name)


def scores_path(store: TrajectoryStore) -> Path:
    """The folder that holds an arm's scores."""
    return store.folder / "scores"


class RoundArms(Record):
    """round-N/evaluation/arms-<split>.json"""

    arms: dict[str, str]
    """By arm name, its folder below the run folder, in the order of the table."""


def results_path(folder: RoundFolder, split: str) -> Path:
    """The file that holds a round's results on a split."""
    return folder.evaluation / ("results.json" if split == FINAL else f"results-{split}.json")


def arms_file(folder: RoundFolder, split: str) -> Path:
    """The file that names the arms of a round on a split."""
    return folder.evaluation / f"arms-{split}.json"


def read_arms(folder: RoundFolder, split: str) -> dict[str, TrajectoryStore]:
    """By name, the arms of the round's last evaluation on the split; empty before the first one."""
    record = read_record(arms_file(folder, split), RoundArms, "delete it and run `ratchet evaluate` again")
    run = folder.path.parent
    return {name: TrajectoryStore(run / place) for name, place in record.arms.items()} if record else {}


def evaluated_splits(folder: RoundFolder) -> list[str]:
    """The question sets that the round's arms were started on."""
    return sorted(path.stem.removeprefix("arms-") for path in folder.evaluation.glob("arms-*.json"))
