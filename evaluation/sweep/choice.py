"""Choosing a checkpoint on dev, and recording its single evaluation on test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ratchet.core.errors import UserError
from ratchet.core.files import read_record, write_record
from ratchet.evaluation.measures.measures import measure_of
from ratchet.evaluation.sweep.cells import Sweep, SweepQuestionSet
from ratchet.evaluation.sweep.records import Choice, TestEvaluation, TestRecord

Columns = Mapping[str, Sequence[Sequence[float]]]
"""By checkpoint, in the sweep's order: for each dev set the values of its questions, the same for every checkpoint."""


def choose(system: str, columns: Columns, policies: Mapping[str, str], measure: str) -> Choice:
    """The checkpoint with the best mean over the dev sets; of equal ones the first, which is the earlier or simpler."""
    sign = -1.0 if measure_of(measure).better == "lower" else 1.0
    means = {name: float(np.mean([np.mean(values) for values in sets])) for name, sets in columns.items()}
    order = sorted(means, key=lambda name: -sign * round(means[name], 12))  # stable: ties stay in the sweep's order
    best, runner_up = order[0], order[1] if len(order) > 1 else None
    return Choice(
        system=system,
        checkpoint=best,
        policy=policies[best],
        mean=means[best],
        sentence=_sentence(system, best, runner_up, means, measure),
    )


def _sentence(system: str, best: str, runner_up: str | None, means: Mapping[str, float], measure: str) -> str:
    text = f"{system}: best on dev is {best}, {measure_of(measure).short} {means[best]:.3f}"
    if runner_up is None:
        return f"{text}; it is the only checkpoint."
    gap = abs(means[best] - means[runner_up])
    ahead = (
        f"{gap:.3f} ahead of {runner_up}" if gap >= 0.0005 else f"level with {runner_up}, which is later in the sweep"
    )
    return (
        f"{text}, {ahead}. The best of {len(means)} is optimistically biased on the questions that chose it: rely on "
        "the test sets for its quality."
    )


def read_test_record(folder: Path) -> TestRecord:
    """The sweep's test.json; an empty record where there is none."""
    fix = "it records what was tested: restore it, do not delete it"
    return read_record(_path(folder), TestRecord, fix) or TestRecord()


def _path(folder: Path) -> Path:
    return folder / "test.json"


def evaluations_of(record: TestRecord, asked: SweepQuestionSet, system: str) -> list[TestEvaluation]:
    """The system's recorded evaluations on these questions, whatever the set was called then."""
    return [look for look in record.looks if (look.digest, look.system) == (asked.digest, system)]


def record_evaluations(sweep: Sweep, choices: Sequence[Choice], again: bool) -> None:
    """Record that these choices are measured on the test sets. Raises UserError where another one was before.

    Resuming with the same choice adds no record.
    """
    record = read_test_record(sweep.folder)
    new: list[TestEvaluation] = []
    for choice in choices:
        for asked in sweep.test:
            before = evaluations_of(record, asked, choice.system)
            if before and before[-1].policy == choice.policy:
                continue
            if before and not again:
                last = before[-1]
                raise UserError(
                    f"{_path(sweep.folder)}: {asked.name} was already measured on {last.at}, with {last.checkpoint} "
                    f"for {choice.system}; dev now chooses {choice.checkpoint}. Measuring several choices on one "
                    "test set is choosing on it: its numbers are then optimistically biased. Report the first result, "
                    "use a fresh test set, or add --again; every table then says how often the set was measured."
                )
            new.append(
                TestEvaluation(
                    split=asked.name,
                    digest=asked.digest,
                    system=choice.system,
                    checkpoint=choice.checkpoint,
                    policy=choice.policy,
                    at=datetime.now(UTC).isoformat(timespec="seconds"),
                )
            )
    if new:
        record = TestRecord(looks=(*record.looks, *new))
        write_record(_path(sweep.folder), record)
