"""Trajectories as a sheet that people judge by hand, and the judgements read back into tables.

    python -m evaluation adjudicate --config X --out sheet.csv         a sheet with the claims that an arm got wrong
    python -m evaluation adjudicated --config X ann.csv bob.csv        who was wrong, why, and how annotators agree

A sheet is CSV with one line for each trajectory. An annotator fills in the last columns of a copy; its name is the
annotator's, where the column is empty. What the sheets say is checked against the trajectories on disk.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from agents.core.claims import one_line
from evaluation.arms import arm_trajectories
from evaluation.measures.adjudication import (
    ERRORS,
    OUTCOMES,
    PARTS,
    UNCERTAIN,
    Judgement,
    majority,
    pair_agreements,
    wrong_part_shares,
)
from evaluation.question_sets import question_set
from evaluation.round_arms import read_arms
from ratchet.config import Config
from ratchet.errors import UserError, did_you_mean
from ratchet.records import Question, Trajectory, content_key
from ratchet.runfolder import RunFolder
from ratchet.tables import print_table
from ratchet.text import escape_formula

SHOWN = ("split", "arm", "key", "claim", "gold", "verdict", "reasons", "facts", "steps", "evidence")
ASKED = ("annotator", "label", "errors", "wrong_parts", "note")
NONE = "none"
"""In `wrong_parts`: the decomposition was judged, and is right."""
EVIDENCE_CHARACTERS = 600


@dataclass(frozen=True)
class Judged:
    """A trajectory with its question, and where it is from."""

    split: str
    arm: str
    question: Question
    trajectory: Trajectory


def judged_trajectories(config: Config, number: int, split: str, arm: str) -> list[Judged]:
    """The arm's trajectories with labelled questions. UserError where the arm was not run."""
    arms = read_arms(RunFolder(config.folder).round(number), split)
    if arm not in arms:
        raise UserError(f"{config.folder}: the arm {arm!r} was not run on {split}{did_you_mean(arm, arms)}")
    questions = {
        question.id: question
        for question in question_set(config.questions, config.evaluation.benchmarks, config.seed, split).questions
    }
    trajectories = [one for one in arm_trajectories(arms[arm]) if questions[one.question_id].label is not None]
    return [Judged(split, arm, questions[one.question_id], one) for one in trajectories if one.status != "failed"]


def drawn(found: Sequence[Judged], count: int | None, seed: int) -> list[Judged]:
    """So many of them, by a hash of the seed and their keys; all where `count` is None."""
    order = sorted(found, key=lambda one: content_key("adjudicate", seed, one.trajectory.key))
    chosen = {one.trajectory.key for one in order[:count]}
    return [one for one in found if one.trajectory.key in chosen]


def sheet(judged: Sequence[Judged]) -> str:
    """The sheet as CSV, with empty columns to fill in."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*SHOWN, *ASKED])
    for one in judged:
        done = one.trajectory
        cells = [one.split, one.arm, done.key, one.question.text, one.question.label or "", done.answer]
        cells += [done.explanation, _facts(done), _steps(done), _evidence(done)]
        writer.writerow([*map(escape_formula, cells), *("" for _ in ASKED)])
    return out.getvalue()


def _facts(done: Trajectory) -> str:
    """What a Decomposer wrote; empty for a system without one."""
    return next((call.text for call in done.model_calls if call.role == "decomposer" and call.parse == "ok"), "")


def _steps(done: Trajectory) -> str:
    return "\n".join(f"{turn.round}. {turn.speaker}: {one_line(turn.query or turn.said, 300)}" for turn in done.turns)


def _evidence(done: Trajectory) -> str:
    return "\n".join(f"{p.title}: {one_line(p.text, EVIDENCE_CHARACTERS)}" for p in done.passages)


def read_sheet(
    path: Path, config: Config, number: int, known: dict[tuple[str, str], dict[str, Judged]]
) -> Iterator[Judgement]:
    """The judgements of a sheet. `known`: trajectories that were read already, by split and arm.

    A line without a label was not judged, and is skipped. UserError with file, line and column for what cannot be.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8-sig"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as CSV in UTF-8 ({error})") from error
    missing = [name for name in ("split", "arm", "key", "label") if rows and name not in rows[0]]
    if missing:
        raise UserError(
            f"{path}: the column {missing[0]!r} is missing; fill in a sheet of `python -m evaluation adjudicate`"
        )
    for line, row in enumerate(rows, 2):
        cells = {name: (value or "").strip() for name, value in row.items() if isinstance(name, str)}
        if not cells["label"]:
            continue
        place = cells["split"], cells["arm"]
        if place not in known:
            known[place] = {one.trajectory.key: one for one in judged_trajectories(config, number, *place)}
        yield _judgement(f"{path}: row {line}", path.stem, cells, known[place])


def _judgement(where: str, annotator: str, cells: Mapping[str, str], known: Mapping[str, Judged]) -> Judgement:
    if cells["key"] not in known:
        raise UserError(f"{where}: no trajectory of {cells['arm']} on {cells['split']} has the key {cells['key']!r}")
    one = known[cells["key"]]
    labels = [*(label.name for label in one.question.labels), UNCERTAIN]
    parts = cells.get("wrong_parts", "")
    return Judgement(
        annotator=cells.get("annotator") or annotator,
        key=cells["key"],
        gold=one.question.label or "",
        verdict=one.trajectory.answer,
        label=_chosen(where, "label", [cells["label"]], labels)[0],
        errors=_chosen(where, "errors", cells.get("errors", "").split(";"), ERRORS),
        wrong_parts=() if parts == NONE else _chosen(where, "wrong_parts", parts.split(";"), PARTS) or None,
    )


def _chosen(where: str, column: str, given: Sequence[str], names: Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    """The names that are meant, whatever their letter case. Raises UserError."""
    spellings = {name.casefold(): name for name in names}
    found = []
    for text in filter(None, (text.strip() for text in given)):
        if text.casefold() not in spellings:
            raise UserError(f"{where}, {column}: {text!r} is none of {', '.join(names)}{did_you_mean(text, names)}")
        found.append(spellings[text.casefold()])
    return tuple(dict.fromkeys(found))


def print_judgements(
    judgements: Sequence[Judgement], known: Mapping[tuple[str, str], Mapping[str, Judged]], out: TextIO | None = None
) -> None:
    """Print outcomes, errors, wrong parts of decompositions, the agreement of annotators, and the accuracy by them.

    `known`: the judged arms' trajectories by split and arm, then by key.
    """
    tables = [_outcomes(judgements), _errors(judgements), _wrong_parts(judgements), _agreement(judgements)]
    for table in [*tables, _accuracy(judgements, known)]:
        if table.rows:
            print_table(table, out)


def _outcomes(judgements: Sequence[Judgement]) -> Table:
    people = sorted({one.annotator for one in judgements})
    agreed = Counter("tied" if outcome is None else outcome for outcome in majority(judgements).values())
    rows = {name: Counter[str](one.outcome for one in judgements if one.annotator == name) for name in people}
    table = _table(
        f"{agreed.total()} trajectories judged by {len(people)} annotator(s)",
        "model error: the annotator gives the gold label; data set error: the verdict's; tied: no majority",
    )
    shown = [*OUTCOMES, *(["tied"] if agreed["tied"] else [])]
    _columns(table, "annotator", *shown, "judged")
    for name, counts in (rows | ({"majority": agreed} if len(people) > 1 else {})).items():
        cells = [f"{counts[head]} ({100 * counts[head] / counts.total():.1f}%)" for head in shown]
        table.add_row(escape(name), *cells, str(counts.total()))
    return table


def _errors(judgements: Sequence[Judgement]) -> Table:
    table = _table("Errors", "share: of all judgements, which may each name several errors")
    _columns(table, "error", "judgements", "share")
    table.add_column("meaning")
    for name, count in Counter(error for one in judgements for error in one.errors).most_common():
        table.add_row(name, str(count), f"{100 * count / len(judgements):.1f}%", ERRORS[name])
    return table


def _wrong_parts(judgements: Sequence[Judgement]) -> Table:
    judged = sum(one.wrong_parts is not None for one in judgements)
    table = _table(f"Wrong parts of the claims' triplets, in {judged} judgements")
    _columns(table, "part", "share")
    for part, share in wrong_part_shares(judgements).items():
        table.add_row(part, f"{100 * share:.1f}%")
    return table


def _agreement(judgements: Sequence[Judgement]) -> Table:
    table = _table("Agreement of annotators on labels", "kappa: Cohen's; -: not defined")
    _columns(table, "annotators", "both judged", "identical", "kappa")
    for pair in pair_agreements(judgements):
        numbers = ["-" if value is None else f"{value:.3f}" for value in (pair.identical, pair.kappa)]
        table.add_row(escape(f"{pair.first}, {pair.second}"), str(pair.common), *numbers)
    return table


def _accuracy(judgements: Sequence[Judgement], known: Mapping[tuple[str, str], Mapping[str, Judged]]) -> Table:
    table = _table(
        "Accuracy, in percent",
        "by people: the majority's label in place of the gold label, without what is uncertain or tied; verdicts that "
        "nobody judged count by the gold label",
    )
    _columns(table, "question set and arm", "verdicts", "by gold labels", "by people", "left out", "wrong, not judged")
    agreed = majority(judgements)
    for (split, arm), group in known.items():
        by_gold = {key: one.trajectory.answer == one.question.label for key, one in group.items()}
        left_out = {key for key in group if key in agreed and agreed[key] in (None, "uncertain")}
        by_people = [
            agreed[key] in ("right", "data set error") if key in agreed else is_right
            for key, is_right in by_gold.items()
            if key not in left_out
        ]
        open_ones = sum(not is_right and key not in agreed for key, is_right in by_gold.items())
        shares = [f"{100 * sum(some) / len(some):.1f}" if some else "-" for some in ([*by_gold.values()], by_people)]
        table.add_row(escape(f"{split}, {arm}"), str(len(group)), *shares, str(len(left_out)), str(open_ones))
    return table


def _table(title: str, caption: str = "") -> Table:
    return Table(title=title, box=SIMPLE_HEAD, caption=caption or None, title_justify="left", caption_justify="left")


def _columns(table: Table, first: str, *others: str) -> None:
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
