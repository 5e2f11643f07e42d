"""The files of a sweep: sweep.json, with everything that its tables show, and test.json."""

from __future__ import annotations

from ratchet.core.records import Record
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.results import Arm, BaselineComparison
from ratchet.evaluation.sweep.checkpoints import Checkpoint


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
    difference: Difference | None = None
    """The difference from the same system on the base model, in the question set's measure; None for the base model
    itself, and where that is missing."""
    p_holm: float | None = None
    """The p value with Holm's correction over all differences of the stage."""
    best_untrained: BaselineComparison | None = None
    """A tested choice against the best system that was tested with the base model; None where that is its base alone,
    or the choice is the base model."""


class Choice(Record):
    """The best checkpoint of a system, by dev alone."""

    system: str
    checkpoint: str
    policy: str
    mean: float
    """The mean over the dev sets."""
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


class SweepResults(Record):
    """sweep.json: the results of all finished cells."""

    run: str
    samples: int
    seed: int
    resamples: int
    checkpoints: tuple[Checkpoint, ...]
    systems: dict[str, str]
    """By name in the sweep, the system's module in agents/."""
    sets: tuple[SetFacts, ...]
    cells: tuple[CellResult, ...]
    missing: tuple[str, ...]
    """The cells that are not finished, with what each lacks."""
    choices: tuple[Choice, ...]
    undecided: tuple[str, ...]
    """The systems without a choice, each with the reason."""
    notes: tuple[str, ...]
    """Warnings about the numbers."""

    def set(self, name: str) -> SetFacts:
        return next(facts for facts in self.sets if facts.name == name)
