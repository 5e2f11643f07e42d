"""The record of an evaluation: arms, their measures, and paired differences against the base model.

Values, and verdicts on labels, are kept per question, so that any table can be rebuilt without a model or a
trajectory. `evaluation.comparisons` computes them, `evaluation.formats` shows them.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ratchet.core.files import read_record
from ratchet.core.records import Record
from ratchet.evaluation.measures.complementarity import Complementarity
from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.measures import Values
from ratchet.evaluation.measures.verdicts import Verdicts

BASE, PARENT, TRAINED = "base", "parent", "adapter"
RANDOM, GOLD, BASE_AGAIN = "random selection", "gold answers", "base again"
"""The arms of `evaluation.controls`."""
RESERVED = (BASE, PARENT, TRAINED, RANDOM, GOLD, BASE_AGAIN)
"""Names that no baseline may have."""


MIN_ANSWERED = 10
"""With fewer questions that both arms answered, nothing can be said about substance."""


class CostPair(Record):
    """The mean cost of a question, in one unit."""

    baseline: float
    trained: float
    ratio: float | None
    """trained / baseline; None where the baseline costs nothing."""


class BaselineComparison(Record):
    """The trained model against the best of some baselines, on the questions that both were asked."""

    name: str
    system: str
    candidates: int
    """The number of baselines that it is the best of, on the questions of `difference`: with more than one, its mean on
    them is optimistically biased."""
    difference: Difference
    """Trained - baseline in the primary measure, paired by question."""
    costs: dict[str, CostPair]


class Arm(Record):
    """One system under one policy, on the split's questions."""

    name: str
    """A name of RESERVED, or a baseline's in the config. 'parent': the adapter that a round sampled with."""
    system: str
    policy: str
    """'base', or the adapter's digest."""
    trajectories: int
    statuses: dict[str, int]
    measures: dict[str, Estimate]
    kinds: dict[str, dict[str, Estimate]]
    """The measures by question kind; empty when there are fewer than two kinds."""
    values: dict[str, Values]
    """By question id, the mean of each measure over the question's samples."""
    answered: dict[str, float]
    """By question id, the primary measure over the samples that finished with an answer, where there are any; of one as
    returned, also over those out of budget with an answer."""
    verdicts: Verdicts | None = None
    """The verdicts on questions with labels; None where there are none."""

    def by_question(self, measure: str) -> dict[str, float | None]:
        return {i: values.get(measure) for i, values in self.values.items()}

    def known(self, measure: str) -> dict[str, float]:
        """A measure by question id, where it has a value."""
        return {i: value for i, value in self.by_question(measure).items() if value is not None}


class Gain(Record):
    """The parts of an arm's gain over the base."""

    form: Difference
    """The share of trajectories that finished with an answer, over all questions that both arms were asked. A strict
    measure counts the others as wrong, so that it rises by form alone where a model learns to end its answers."""
    substance: Difference
    """The primary measure among those trajectories, over the questions where both arms have one."""

    @property
    def is_form_only(self) -> bool:
        """True where form clearly rose and substance did not; False where too few questions tell."""
        return _rose(self.form) and self.substance.n >= MIN_ANSWERED and not _rose(self.substance)


def _rose(difference: Difference) -> bool:
    return difference.is_clear() and (difference.mean or 0.0) > 0


class QuestionChanges(Record):
    """The questions that changed from one arm to another, of those with a value of the primary measure in both.
    Sampling the base model again changes some as well."""

    gained: int
    """Questions whose value rose by at least `comparisons.CHANGE`."""
    broken: int
    questions: int


class LabelFloor(Record):
    """The accuracy that a question set with labels gives for nothing."""

    chance: float
    """The expected accuracy of a label drawn at random from those on offer."""
    commonest: str
    """The label that is right most often; of equal ones the first by name."""
    accuracy: float
    """The accuracy of always giving the commonest label."""


class Comparison(Record):
    """An arm against the base arm."""

    arm: str
    measures: dict[str, Difference]
    kinds: dict[str, Difference]
    """The difference in the primary measure, by question kind."""
    gain: Gain
    changes: QuestionChanges


class Results(Record):
    """The evaluation of a round on one question set, as stored in results.json."""

    round: int
    split: str
    """The split's name, or the benchmark's in the config."""
    title: str = ""
    questions: int
    samples: int
    seed: int
    resamples: int
    primary: str
    """The measure of the verdict, chosen before any result by `primary_measure`."""
    arms: tuple[Arm, ...]
    """Base first."""
    comparisons: tuple[Comparison, ...]
    complementarity: dict[str, Complementarity] = Field(default={})
    """By arm, where its system chooses between candidate answers."""
    label_floor: LabelFloor | None = None
    """The accuracy without any skill; None where no question has a label."""
    best_baseline: BaselineComparison | None = None
    """The trained arm against the best of the untrained baselines; None where one of the two was not run."""
    trained_baseline: BaselineComparison | None = None
    """The trained arm against the best of the baselines with an adapter of their own; None where there is none."""
    selection: Difference | None = None
    """The worth of selection: the trained arm less the one of a random selection, in the primary measure, paired by
    question; None where one of the two was not run."""
    headline: str
    """The verdict in a few words; empty where the numbers allow none."""
    numbers: str

    @property
    def verdict(self) -> str:
        return ". ".join(filter(None, (self.headline, self.numbers)))

    def arm(self, name: str) -> Arm | None:
        return next((arm for arm in self.arms if arm.name == name), None)

    def comparison(self, arm: str) -> Comparison | None:
        return next((comparison for comparison in self.comparisons if comparison.arm == arm), None)

    def difference(self, arm: str, name: str = "") -> Difference | None:
        """An arm's difference from base in a measure, by default the primary one; None where there is none."""
        comparison = self.comparison(arm)
        return comparison.measures.get(name or self.primary) if comparison else None

    def changes(self, arm: str) -> QuestionChanges | None:
        comparison = self.comparison(arm)
        return comparison.changes if comparison else None


def read_results(path: Path) -> Results | None:
    """The stored results, or None when there are none yet."""
    return read_record(path, Results, "rebuild it with `ratchet evaluate table`")
