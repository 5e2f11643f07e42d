"""What a gain consists of: form and substance; and what no skill at all would score on questions with labels.

- Form: the share of trajectories that finished with an answer. A strict measure counts the others as wrong, so that it
  rises by form alone where a model learns to end its answers as it was told.
- Substance: the primary measure among the trajectories that finished with an answer, paired over the questions on which
  both arms have such a trajectory.
- Changed questions: how many the arm gained and how many it broke. Sampling the base model again changes some as well.
- Label floor: what chance, and always giving the commonest label, would score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from ratchet.core.records import Question, Record
from ratchet.evaluation.measures.estimates import Difference
from ratchet.evaluation.measures.statistics import paired, paired_difference

MIN_ANSWERED = 10
"""With fewer questions that both arms answered, nothing can be said about substance."""

CHANGE = 0.5
"""A question is gained or broken where its value changes by this much: a wrong label or exact match became right, or
the reverse. With several samples the value is their mean."""
ROUNDING = 1e-9
"""Means over samples differ from CHANGE by less than this only by rounding."""


class Gain(Record):
    """The two parts of an arm's gain over the base."""

    form: Difference
    """The share of trajectories that finished with an answer, over all questions that both arms were asked."""
    substance: Difference
    """The primary measure among those trajectories, over the questions where both arms have one."""

    @property
    def is_form_only(self) -> bool:
        """Whether form clearly rose and substance did not; False where too few questions tell."""
        return _rose(self.form) and self.substance.n >= MIN_ANSWERED and not _rose(self.substance)


class QuestionChanges(Record):
    """How many questions changed from one arm to another, of those with a value of the primary measure in both."""

    gained: int
    """Questions whose value rose by at least CHANGE."""
    broken: int
    """Questions whose value fell by at least CHANGE."""
    questions: int


class LabelFloor(Record):
    """The accuracy that a question set with labels gives for nothing."""

    chance: float
    """The expected accuracy of a label drawn at random from those on offer."""
    commonest: str
    """The label that is right most often; of equal ones the first by name."""
    accuracy: float
    """The accuracy of always giving the commonest label."""


def gain(
    before: Mapping[str, float],
    after: Mapping[str, float],
    answered_before: Mapping[str, float | None],
    answered_after: Mapping[str, float | None],
    seed: int,
) -> Gain:
    """The parts of a gain, from values by question id: `before` and `after` the primary measure of the trajectories
    that finished with an answer, the others the share of such trajectories."""
    return Gain(
        form=paired_difference(*paired(answered_before, answered_after), seed),
        substance=paired_difference(*paired(before, after), seed),
    )


def question_changes(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> QuestionChanges:
    """The questions gained and broken, from values of the primary measure by question id, where higher is better."""
    changes = [y - x for x, y in zip(*paired(before, after), strict=True)]
    return QuestionChanges(
        gained=sum(change >= CHANGE - ROUNDING for change in changes),
        broken=sum(change <= ROUNDING - CHANGE for change in changes),
        questions=len(changes),
    )


def label_floor(questions: Sequence[Question]) -> LabelFloor | None:
    """The floor of the questions that have a label; None where none has."""
    labelled = [question for question in questions if question.label is not None and question.labels]
    if not labelled:
        return None
    names = {label.name.casefold(): label.name for question in labelled for label in question.labels}
    counts = Counter((question.label or "").casefold() for question in labelled)
    commonest = min(counts, key=lambda label: (-counts[label], label))
    return LabelFloor(
        chance=fmean(1 / len(question.labels) for question in labelled),
        commonest=names.get(commonest, commonest),
        accuracy=counts[commonest] / len(labelled),
    )


def _rose(difference: Difference) -> bool:
    return difference.is_clear() and (difference.mean or 0.0) > 0
