"""The records of the loop over rounds: its stages, the choices of adapters, and which adapters were promoted."""

from __future__ import annotations

import sys
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from ratchet.core.config import Config
from ratchet.core.files import read_record
from ratchet.core.records import Record, Selection
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.evaluation.measures.estimates import Difference

StageId = Literal[
    "index",
    "sample",
    "score",
    "train",
    "train.random",
    "train.gold",
    "choose.sample",
    "choose",
    "promote.sample",
    "promote",
    "evaluate.sample",
    "evaluate",
    "test.sample",
    "test",
    "report",
    "compare",
]
"""The kinds of stages. The first half of an evaluation in two stages has an id of its own."""
TITLES: dict[StageId, str] = {
    "score": "score and select",
    "train.random": "train: random selection",
    "train.gold": "train: gold answers",
    "choose.sample": "choose: sample",
    "promote.sample": "promote: sample",
    "evaluate.sample": "evaluate: sample",
    "test.sample": "test: sample",
}
"""The titles for people, where they differ from the id."""


class StageKey(NamedTuple):
    """The key of a stage in a run."""

    round: int
    id: StageId
    member: str = ""
    """Whose stage it is, of the config's members; empty for the run's own."""

    @property
    def title(self) -> str:
        """For people only."""
        title = TITLES.get(self.id, self.id)
        return f"{self.member}: {title}" if self.member else title


class Entry(Record):
    """One finished stage, a line of ledger.jsonl: what went in and what came out, by content.

    Names of inputs and outputs are the same in all entries, so following digests leads from an evaluation back to the
    questions: "questions", "index", "trajectories", "samples", "scores", "selection", "rows", "candidates",
    "choice", "adapter", "control", "evaluation", "promotion". An input "adapter" is the one that sampled, was trained
    on or was evaluated, "parent" the one that it is compared with, "control" the one of a random selection, "gold" the
    one of gold answers; "config" is what of the config the stage depends on and may change on a run.
    """

    round: int
    stage: StageId
    member: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    facts: dict[str, Any]
    """Counts and measures worth reading, such as {"trajectories": 800}."""
    began: str
    """UTC, ISO 8601."""
    seconds: float
    machine: str
    code: str = Field("", exclude_if=lambda code: not code)
    """The version of the code that ran it (`ratchet.core.installed`)."""
    anyway: str = ""
    """The inputs that were out of date, where the user went on with --anyway."""

    @property
    def key(self) -> StageKey:
        return StageKey(self.round, self.stage, self.member)


class Candidate(Record):
    """One evaluated adapter of a training."""

    step: int
    digest: str
    dev_loss: float | None
    """The loss on held-out kept actions, the cheap stand-in for the reward."""
    reward: float | None
    """The mean reward over the dev questions that have one from every candidate."""


class AdapterChoice(Record):
    """round-N/choice.json: which evaluated adapter became the round's, by reward on dev."""

    round: int
    step: int
    """The step of the chosen adapter; of equal rewards the earliest."""
    digest: str
    questions: int
    """The number of questions whose rewards were compared."""
    weights: dict[str, float]
    candidates: tuple[Candidate, ...]
    reason: str


class Promotion(Record):
    """round-N/promotion.json: whether an adapter takes its parent's place, and why."""

    round: int
    candidate: str
    """The trained adapter's digest; empty where the round trained none, because nothing was kept."""
    parent: str
    """The digest of the adapter that sampled, or 'base'."""
    split: str
    measure: str
    base: float | None
    """The base model's mean on the same questions."""
    difference: Difference
    promoted: bool
    reason: str
    warning: str = ""
    """A sentence where dev has too few questions to show a gain of 0.05; else empty."""


SPLIT = "dev"


def read_promotion(folder: RoundFolder) -> Promotion | None:
    """The decision on a round; None before there is one."""
    return read_record(folder.promotion, Promotion, "delete it, and `ratchet selftrain` decides again")


def read_promotions(run: RunFolder) -> list[Promotion]:
    """The decisions that stand, in the order of the rounds.

    Where an earlier round was done again, those after it do not: their adapters were compared with, and made from, one
    that is no longer promoted.
    """
    standing: list[Promotion] = []
    parent = "base"
    for promotion in filter(None, map(read_promotion, run.rounds())):
        if promotion.parent != parent:
            break
        standing.append(promotion)
        parent = promotion.candidate if promotion.promoted else parent
    return standing


def last_promoted(run: RunFolder, before: int) -> int | None:
    """The last round, before round `before`, whose adapter was promoted; None where the base model stands."""
    return max((p.round for p in read_promotions(run) if p.promoted and p.round < before), default=None)


def best_round(run: RunFolder) -> int | None:
    """The round whose adapter a run stands by: the last promoted one, or where nothing was promoted, the last that was
    trained; None where no adapter was."""
    promoted = last_promoted(run, before=sys.maxsize)
    if promoted is not None:
        return promoted
    return max((folder.number for folder in run.rounds() if folder.adapter.is_dir()), default=None)


def last_round(config: Config) -> int:
    """The run's last round: `count`, or with `until_flat` the one that was decided last, if it promoted nothing."""
    decided = read_promotions(RunFolder(config.folder)) if config.rounds.until_flat else []
    return decided[-1].round if decided and not decided[-1].promoted else config.rounds.count


def why_it_ended(config: Config) -> str:
    """A sentence where `until_flat` ended the run before round `count`; else empty."""
    number, most = last_round(config), config.rounds.count
    if number >= most:
        return ""
    return f"The run ended after round {number} of at most {most}, which promoted nothing (rounds.until_flat)."


def kept_any(folder: RoundFolder) -> bool:
    """True where a round's selection kept a trajectory to train on, and before there is one that can be read."""
    try:
        return bool(Selection.model_validate_json(folder.selection.read_bytes()).kept)
    except (OSError, ValidationError):
        return True
