"""Verdicts on question sets with labels: the confusion, macro-F1, uncertain verdicts and votes of an arm.

- Confusion: a row a gold label; columns for the labels, for UNCERTAIN, for any other answer, and for each way of
  ending without one, apart (unparsed, out of budget, failed). A question weighs 1: its samples share it.
- Strict: a trajectory that did not finish, or has no answer, is wrong, as for accuracy: its verdict is a label of its
  own that is gold of none. As returned: an answer at the end of the budget counts. Lenient: only trajectories with an
  answer, however they ended.
- Macro-F1: scikit-learn's f1_score(average="macro"), with the labels that are gold of some question (of a resample: of
  some question in it) as its `labels`, so it is over the same labels for every arm. Saying a label that is gold of none
  is a wrong verdict. No verdict at all lowers its label's recall and no precision, so that it costs macro-F1 less than
  a wrong one; accuracy counts both alike.
- Uncertain: "UNCERTAIN", or the task's label of stance "unknown". Decided: one of the other labels. What ended
  otherwise is neither. Whether an uncertain verdict would have been wrong cannot be known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ratchet.core.records import Question, Record, Status, Trajectory
from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.measures.statistics import Rows, averaged_interval, paired_statistic, statistic_interval
from ratchet.rewards.reward import RETURNED

UNCERTAIN = "UNCERTAIN"
"""The answer of a system that may abstain on a task without a label for that."""
ENDINGS: tuple[Status, ...] = ("unparsed", "out_of_budget", "failed")
APART = ("uncertain", "other", *(ending.replace("_", " ") for ending in ENDINGS))
"""The confusion's columns after the labels."""

FINISHED: tuple[Status, ...] = ("finished",)
MACRO_F1: Mapping[str, Collection[Status] | None] = {
    "macro_f1": FINISHED,
    "macro_f1_as_returned": RETURNED,
    "macro_f1_lenient": None,
}
"""Measures of a question set as a whole, with the endings whose verdict counts; None: trajectories without a verdict
are left out, and all others count."""


class Sample(NamedTuple):
    """The verdict of one trajectory."""

    status: Status
    verdict: int | None
    """The verdict's column of the confusion; None where there is no answer."""


class QuestionVerdicts(Record):
    """A question with the verdicts of an arm's samples."""

    gold: int
    """The index of the question's label in `Verdicts.labels`."""
    samples: tuple[Sample, ...]


class Verdicts(Record):
    """The verdicts of one arm on every question that has a label."""

    labels: tuple[str, ...]
    unknown: tuple[str, ...]
    """The labels of stance "unknown"."""
    questions: dict[str, QuestionVerdicts]
    confusion: tuple[tuple[float, ...], ...]
    """Strict counts of questions, or fractions of them. Rows: gold labels; columns: the labels, then `APART`."""

    def column(self, sample: Sample) -> int:
        if sample.status != "finished":
            return len(self.labels) + 2 + ENDINGS.index(sample.status)
        return len(self.labels) + 1 if sample.verdict is None else sample.verdict

    def is_uncertain(self, sample: Sample) -> bool:
        at = self.column(sample)
        return at == len(self.labels) or (at < len(self.labels) and self.labels[at] in self.unknown)

    def is_decided(self, sample: Sample) -> bool:
        return self.column(sample) < len(self.labels) and not self.is_uncertain(sample)


class LabelScore(NamedTuple):
    """The scores of one label, strict; None where there is nothing to divide by."""

    name: str
    questions: float
    precision: float | None
    recall: float | None
    f1: float | None


def verdicts_of(questions: Sequence[Question], trajectories: Iterable[Trajectory]) -> Verdicts | None:
    """Read the verdicts of an arm; None where no question with a label was asked."""
    labelled = {question.id: question for question in questions if question.label is not None}
    every = [label for question in labelled.values() for label in question.labels]
    names = {label.name.casefold(): label.name for label in reversed(every)}
    labels = tuple(dict.fromkeys(names[label.name.casefold()] for label in every))
    place = {label.casefold(): i for i, label in enumerate(labels)}

    def read(answer: str) -> int | None:
        said = answer.strip().casefold()
        outside = len(labels) if said == UNCERTAIN.casefold() else len(labels) + 1
        return place.get(said, outside) if said else None

    samples: dict[str, list[Sample]] = {}
    for trajectory in trajectories:
        if trajectory.question_id in labelled:
            sample = Sample(trajectory.status, read(trajectory.answer))
            samples.setdefault(trajectory.question_id, []).append(sample)
    if not samples:
        return None
    asked = {
        i: QuestionVerdicts(gold=place[(question.label or "").casefold()], samples=tuple(samples[i]))
        for i, question in labelled.items()
        if i in samples
    }
    verdicts = Verdicts(
        labels=labels,
        unknown=tuple(dict.fromkeys(names[label.name.casefold()] for label in every if label.stance == "unknown")),
        questions=asked,
        confusion=(),
    )
    confusion = np.zeros((len(labels), len(labels) + len(APART)))
    for question in asked.values():
        for sample in question.samples:
            confusion[question.gold, verdicts.column(sample)] += 1 / len(question.samples)
    return verdicts.model_copy(update={"confusion": tuple(tuple(row) for row in confusion.tolist())})


def label_scores(verdicts: Verdicts) -> list[LabelScore]:
    """Precision, recall and F1 of every label, as macro-F1 counts them."""
    sums = np.sum(list(_macro_f1_rows(verdicts).values()), axis=0).reshape(3, -1)
    scores = []
    for name, right, said, gold in zip(verdicts.labels, *sums.tolist(), strict=True):
        scores.append(
            LabelScore(
                name=name,
                questions=gold,
                precision=right / said if said else None,
                recall=right / gold if gold else None,
                f1=2 * right / (gold + said) if gold else None,
            )
        )
    return scores


# Macro-F1


def macro_f1(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """From sums of right verdicts, verdicts and gold questions, by label."""
    right, said, gold = np.split(sums, 3, axis=1)
    f1 = 2 * right / np.where(gold > 0, gold + said, 1)
    return np.asarray(f1.sum(axis=1, where=gold > 0) / np.maximum(1, (gold > 0).sum(axis=1)))


def _macro_f1_rows(verdicts: Verdicts, measure: str = "macro_f1") -> dict[str, NDArray[np.float64]]:
    """The part of each question in the sums of `macro_f1`; leniently without the questions that got no answer."""
    width, rows, ended = len(verdicts.labels), {}, MACRO_F1[measure]
    for i, question in verdicts.questions.items():
        counted = [s for s in question.samples if ended is not None or s.verdict is not None]
        if counted:
            row = np.zeros((3, width))
            for sample in counted:
                verdict = sample.verdict if ended is None or sample.status in ended else None
                if verdict is not None and verdict < width:
                    row[1, verdict] += 1 / len(counted)
            row[0, question.gold] = row[1, question.gold]
            row[2, question.gold] = 1
            rows[i] = row.ravel()
    return rows


def average_macro_f1(sets: Sequence[Verdicts], seed: int, measure: str = "macro_f1") -> Estimate:
    """The mean over question sets of an arm's macro-F1, in one of the forms of `MACRO_F1`."""
    groups = [(_stacked(list(_macro_f1_rows(verdicts, measure).values())), macro_f1) for verdicts in sets]
    return averaged_interval(groups, seed)


def macro_f1_difference(before: Verdicts, after: Verdicts, seed: int, measure: str = "macro_f1") -> Difference:
    """The difference in macro-F1 over the questions that both arms have."""
    first, second = _macro_f1_rows(before, measure), _macro_f1_rows(after, measure)
    both = [i for i in first if i in second]
    if not both:
        return Difference(n=0)
    rows = [_stacked([of_arm[i] for i in both]) for of_arm in (first, second)]
    return paired_statistic(rows[0], rows[1], macro_f1, seed)


def _stacked(rows: Sequence[NDArray[np.float64]]) -> Rows:
    return np.array(rows) if rows else np.empty((0, 0))


# Uncertain verdicts


@dataclass(frozen=True)
class Uncertainty:
    """An arm's uncertain verdicts. Each is a share, 0 to 1."""

    share: Estimate
    """The share of all trajectories whose verdict is uncertain, those without a verdict included in the total."""
    coverage: Estimate
    """The share whose verdict is decided."""
    accuracy: Estimate
    """Accuracy of the decided verdicts: one minus the risk at this coverage."""


def uncertainty(verdicts: Verdicts, seed: int) -> Uncertainty | None:
    """Measure the uncertain verdicts; None where there are none."""
    rows = []
    for question in verdicts.questions.values():
        unsure = fmean(verdicts.is_uncertain(s) for s in question.samples)
        decided = fmean(verdicts.is_decided(s) for s in question.samples)
        right = fmean(verdicts.is_decided(s) and s.verdict == question.gold for s in question.samples)
        rows.append((1.0, unsure, decided, right))
    if not any(row[1] for row in rows):
        return None

    def ratio(above: int, below: int) -> Estimate:
        def statistic(sums: Rows) -> Rows:
            return sums[:, above] / np.where(sums[:, below] > 0, sums[:, below], np.nan)

        return statistic_interval(np.array(rows), statistic, seed)

    return Uncertainty(share=ratio(1, 0), coverage=ratio(2, 0), accuracy=ratio(3, 2))
