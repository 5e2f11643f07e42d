"""The question sets of a config that can be evaluated: its splits and its benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from questions.load import load_split
from ratchet.config import Config, SplitConfig
from ratchet.errors import UserError, did_you_mean
from ratchet.plugins import short_name
from ratchet.records import Question


@dataclass(frozen=True)
class QuestionSet:
    """The questions of a split or benchmark, with their digest and the title that tables show."""

    name: str
    title: str
    questions: Sequence[Question]
    digest: str


def question_set(config: Config, split: str, asked_by: str = "--split") -> QuestionSet:
    """Load a split or benchmark. Raises UserError, which starts with `asked_by`, where it is unknown or unreadable."""
    given = split_of(config, split, asked_by)
    loaded = load_split(given, config.seed)
    title = (short_name(given.benchmark) or split) + ("" if given.order == "file" else f", {given.order}")
    return QuestionSet(split, title, loaded.questions, loaded.digest)


def splits_of(config: Config) -> list[str]:
    """The question sets that are evaluated by default: the config's split and its benchmarks."""
    return [config.evaluation.split, *config.evaluation.benchmarks]


def split_of(config: Config, name: str, asked_by: str = "--split") -> SplitConfig:
    """The split or benchmark of this name. Raises UserError, which starts with `asked_by`."""
    splits = {"train": config.questions.train, "dev": config.questions.dev, "test": config.questions.test}
    for taken in config.evaluation.benchmarks:
        if taken in splits or taken.startswith(".") or "/" in taken:
            raise UserError(f"evaluation.benchmarks.{taken}: this name cannot be used for a benchmark; choose another")
    splits |= config.evaluation.benchmarks
    if name not in splits:
        raise UserError(f"{asked_by} {name}: no such split or benchmark in the config{did_you_mean(name, splits)}")
    return splits[name]
