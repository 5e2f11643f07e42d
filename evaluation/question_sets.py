"""The question sets that can be evaluated: the splits of a config and its benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.core.config import SPLITS, Config, SplitConfig
from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.records import Question


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
