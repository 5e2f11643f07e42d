"""What a sweep writes down: sweep.json, with all that its tables, page and curves show, and test.json."""

from __future__ import annotations

from evaluation.results import Arm, Difference, Estimate
from ratchet.records import Record


class CheckpointFacts(Record):
    name: str
    policy: str
    """'base', or the adapter's digest."""
    adapter: str | None
    run: str
    round: int
    step: int | None


class SetFacts(Record):
    name: str
    title: str
    stage: str
    """dev: chooses. test: measures what was chosen."""
    questions: int
    digest: str
    measure: str
    """What is compared on it."""
    looks: int = 0
    """test: how many choices were measured on it. With more than one its numbers have been chosen from."""


class CellResult(Record):
    """One checkpoint with one system on one question set."""

    checkpoint: str
    system: str
    """Its name in the sweep."""
    split: str
    """The question set's name."""
    stage: str
    tested: bool = False
    """test: it is what was chosen, and not only what that is compared with."""
    arm: Arm
    price: float | None = None
    """Of a question, where the config has prices."""
    base: str | None = None
    """The cell that it is compared with; None for that one itself, and where it is missing."""
    difference: Difference | None = None
    """Of the question set's measure."""
    p_holm: float | None = None
    """Holm's over all differences of the stage."""


class Average(Record):
    """A checkpoint and system over all question sets of a stage, each weighing alike."""

    checkpoint: str
    system: str
    stage: str
    estimate: Estimate


class Choice(Record):
    """The best checkpoint of a system, by dev alone."""

    system: str
    checkpoint: str
    policy: str
    mean: float
    """On dev, over its question sets."""
    runner_up: str | None
    margin: float | None
    """To the runner-up."""
    optimism: float | None
    """How much too good the best of so many looks on the questions that chose it, by bootstrap."""
    sentence: str


class Look(Record):
    """One choice measured on one test set. Written before it is measured, so that no look is forgotten."""

    split: str
    digest: str
    """Of the test set's questions."""
    system: str
    checkpoint: str
    policy: str
    at: str
    """UTC, ISO 8601."""


class TestRecord(Record):
    """sweep/test.json"""

    looks: tuple[Look, ...] = ()


class Point(Record):
    checkpoint: str
    round: int
    step: int | None
    place: float
    """In rounds; the base model is at 0."""
    estimate: Estimate


class Curve(Record):
    """A measure over the checkpoints of one run, in the order they came about."""

    run: str
    system: str
    split: str
    measure: str
    points: tuple[Point, ...]


class SweepResults(Record):
    run: str
    samples: int
    seed: int
    resamples: int
    scores: tuple[str, ...]
    checkpoints: tuple[CheckpointFacts, ...]
    systems: dict[str, str]
    """Name to the file in agents/."""
    sets: tuple[SetFacts, ...]
    cells: tuple[CellResult, ...]
    missing: tuple[str, ...]
    """Cells that are not finished, with what they lack."""
    averages: tuple[Average, ...]
    choices: tuple[Choice, ...]
    undecided: tuple[str, ...]
    """Why a system has no choice yet."""
    notes: tuple[str, ...]
    """What a reader has to know before trusting the numbers."""
    curves: tuple[Curve, ...]

    def set(self, name: str) -> SetFacts:
        return next(one for one in self.sets if one.name == name)
