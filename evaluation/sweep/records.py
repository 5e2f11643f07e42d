"""The files of a sweep: sweep.json, with everything that its tables, page and curves show, and test.json."""

from __future__ import annotations

from evaluation.measures.estimates import Difference, Estimate
from evaluation.results import Arm, BaselineComparison
from ratchet.records import Record


class CheckpointFacts(Record):
    """A checkpoint of the sweep."""

    name: str
    policy: str
    """'base', or the adapter's digest."""
    adapter: str | None
    run: str
    round: int
    step: int | None


class SetFacts(Record):
    """A question set of the sweep."""

    name: str
    title: str
    stage: str
    """'dev', which chooses, or 'test', which measures the choices."""
    questions: int
    digest: str
    measure: str
    """The measure that is compared on this set."""
    looks: int = 0
    """How many choices were measured on a test set. With more than one its numbers are optimistically biased."""


class CellResult(Record):
    """One checkpoint with one system on one question set."""

    checkpoint: str
    system: str
    """The system's name in the sweep."""
    split: str
    """The question set's name."""
    stage: str
    tested: bool = False
    """Whether a test cell is a choice, and not only the base of one."""
    arm: Arm
    price: float | None = None
    """The price of a question, in the currency of the config's prices; None where it has none."""
    base: str | None = None
    """The cell that this one is compared with; None for that one itself, and where it is missing."""
    difference: Difference | None = None
    """The difference from the base in the question set's measure."""
    p_holm: float | None = None
    """The p value with Holm's correction over all differences of the stage."""
    best_untrained: BaselineComparison | None = None
    """A tested choice against the best system that was tested with the base model; None where that is its base alone,
    or the choice is the base model."""


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
    """The mean over the dev sets."""
    runner_up: str | None
    margin: float | None
    """The distance in mean to the runner-up."""
    optimism: float | None
    """The optimistic bias of the best mean on the questions that chose it, by bootstrap."""
    sentence: str


class TestEvaluation(Record):
    """One choice measured on one test set. It is recorded before the measurement, so that none is lost."""

    split: str
    digest: str
    """The digest of the test set's questions."""
    system: str
    checkpoint: str
    policy: str
    at: str
    """The time of the record: UTC, ISO 8601."""


class TestRecord(Record):
    """sweep/test.json"""

    looks: tuple[TestEvaluation, ...] = ()


class Point(Record):
    """A checkpoint on a learning curve."""

    checkpoint: str
    round: int
    step: int | None
    place: float
    """The position in rounds; the base model is at 0."""
    estimate: Estimate


class Curve(Record):
    """A measure over the checkpoints of one run, in the order of their training."""

    run: str
    system: str
    split: str
    measure: str
    points: tuple[Point, ...]


class SweepResults(Record):
    """sweep.json: the results of all finished cells."""

    run: str
    samples: int
    seed: int
    resamples: int
    scores: tuple[str, ...]
    checkpoints: tuple[CheckpointFacts, ...]
    systems: dict[str, str]
    """By name in the sweep, the system's module in agents/."""
    sets: tuple[SetFacts, ...]
    cells: tuple[CellResult, ...]
    missing: tuple[str, ...]
    """The cells that are not finished, with what each lacks."""
    averages: tuple[Average, ...]
    choices: tuple[Choice, ...]
    undecided: tuple[str, ...]
    """The systems without a choice, each with the reason."""
    notes: tuple[str, ...]
    """Warnings about the numbers."""
    curves: tuple[Curve, ...]

    def set(self, name: str) -> SetFacts:
        return next(one for one in self.sets if one.name == name)
