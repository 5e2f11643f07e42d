"""The question sets that can be evaluated: the splits of a config and its benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from questions.load import load_split
from ratchet.config import SPLITS, QuestionsConfig, SplitConfig
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


def question_set(
    questions: QuestionsConfig,
    benchmarks: Mapping[str, SplitConfig],
    seed: int,
    name: str,
    asked_by: str = "--split",
) -> QuestionSet:
    """Load a split or benchmark. Raises UserError, which starts with `asked_by`, where it is unknown or unreadable."""
    split = split_of(questions, benchmarks, name, asked_by)
    loaded = load_split(split, seed)
    title = (short_name(split.benchmark) or name) + ("" if split.order == "file" else f", {split.order}")
    return QuestionSet(name, title, loaded.questions, loaded.digest)


def split_of(
    questions: QuestionsConfig, benchmarks: Mapping[str, SplitConfig], name: str, asked_by: str = "--split"
) -> SplitConfig:
    """The split or benchmark of this name. Raises UserError, which starts with `asked_by`."""
    splits: dict[str, SplitConfig] = {split: getattr(questions, split) for split in SPLITS}
    for taken in benchmarks:
        if taken in splits or taken.startswith(".") or "/" in taken:
            raise UserError(f"evaluation.benchmarks.{taken}: this name cannot be used for a benchmark; choose another")
    splits |= benchmarks
    if name not in splits:
        raise UserError(f"{asked_by} {name}: no such split or benchmark in the config{did_you_mean(name, splits)}")
    return splits[name]
