"""Trajectories as a sheet that people judge by hand, and the judgements read back into tables.

    python -m evaluation adjudicate --config X --out sheet.csv         a sheet with the claims that an arm got wrong
    python -m evaluation adjudicated --config X ann.csv bob.csv        who was wrong, why, and how annotators agree

A sheet is CSV with one line for each trajectory. An annotator fills in the last columns of a copy; its name is the
annotator's, where the column is empty. What the sheets say is checked against the trajectories on disk.

MERMAID (2026, arXiv 2601.22361) has people look at the claims on which it disagrees with the data set: some are the
model's errors, some the data set's, and some cannot be settled; and it counts how often a part of its Decomposer's
triplets is wrong. Its report gives no agreement between annotators, which is here Cohen's kappa of every pair.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal, TextIO

from rich.markup import escape
from rich.table import Table

from agents.core.claims import one_line
from evaluation.tables.stored import StoredSet
from ratchet.errors import UserError, did_you_mean
from ratchet.records import Question, Trajectory, content_key
from ratchet.tables import new_table, print_table
from ratchet.text import escape_formula

UNCERTAIN = "UNCERTAIN"
"""The label of an annotator who cannot settle a claim."""
MODEL_ERRORS = {
    "decomposition": "the claim was taken apart wrongly",
    "not_found": "the evidence was not found",
    "wrong_memory": "recalled evidence was about something else",
    "stopped_early": "the verdict was given before there was enough evidence",
    "repeated_calls": "the same call was made again and again",
    "own_knowledge": "the verdict does not follow the evidence but what the model knows",
    "reasoning": "the evidence was there and was read wrongly",
}
CLAIM_ERRORS = {
    "wrong_label": "the data set's label is wrong",
    "temporal": "the claim's truth depends on the time",
    "vague": "a word of the claim has no definite meaning",
    "bad_claim": "the claim cannot be understood, or is no claim",
}
ERRORS = {**MODEL_ERRORS, **CLAIM_ERRORS}
PARTS = ("subject", "relation", "object", "attributions")
"""Of a triplet."""
Outcome = Literal["model error", "data set error", "both wrong", "uncertain", "right"]
OUTCOMES: tuple[Outcome, ...] = ("model error", "data set error", "both wrong", "uncertain", "right")
SHOWN = ("split", "arm", "key", "claim", "gold", "verdict", "reasons", "facts", "steps", "evidence")
ASKED = ("annotator", "label", "errors", "wrong_parts", "note")
NONE = "none"
"""In `wrong_parts`: the decomposition was judged, and is right."""
EVIDENCE_CHARACTERS = 600


@dataclass(frozen=True)
class Judgement:
    """What one annotator said of one trajectory."""

    annotator: str
    key: str
    """The trajectory's."""
    gold: str
    verdict: str
    label: str
    """The annotator's own label of the claim, or UNCERTAIN."""
    errors: tuple[str, ...] = ()
    """Of ERRORS."""
    wrong_parts: tuple[str, ...] | None = None
    """Of PARTS: what the Decomposer got wrong; None where it was not judged."""

    @property
    def outcome(self) -> Outcome:
        """Who was wrong, by the annotator's label."""
        if self.label == UNCERTAIN:
            return "uncertain"
        if self.label == self.verdict:
            return "right" if self.label == self.gold else "data set error"
        return "model error" if self.label == self.gold else "both wrong"


@dataclass(frozen=True)
class Judged:
    """A trajectory with its question, and where it is from."""

    split: str
    arm: str
    question: Question
    trajectory: Trajectory


JudgedArms = Mapping[tuple[str, str], Mapping[str, Judged]]
"""By question set and arm, the arm's trajectories by key."""


def judged_trajectories(stored: StoredSet, arm: str) -> dict[str, Judged]:
    """The arm's trajectories with labelled questions, by key. UserError where the arm was not run."""
    if arm not in stored.stores:
        raise UserError(f"the arm {arm!r} was not run on {stored.split}{did_you_mean(arm, stored.stores)}")
    questions = {question.id: question for question in stored.questions if question.label is not None}
    return {
        done.key: Judged(stored.split, arm, questions[done.question_id], done)
        for done in stored.trajectories(arm)
        if done.question_id in questions and done.status != "failed"
    }


def drawn(judged: Sequence[Judged], count: int | None, seed: int) -> list[Judged]:
    """So many of them, by a hash of the seed and their keys; all where `count` is None."""
    keys = sorted((each.trajectory.key for each in judged), key=lambda key: content_key("adjudicate", seed, key))
    chosen = set(keys[:count])
    return [each for each in judged if each.trajectory.key in chosen]


def sheet(judged: Sequence[Judged]) -> str:
    """The sheet as CSV, with empty columns to fill in."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*SHOWN, *ASKED])
    for each in judged:
        done, question = each.trajectory, each.question
        cells = [each.split, each.arm, done.key, question.text, question.label or "", done.answer]
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


def read_sheet(path: Path, judged: Callable[[str, str], Mapping[str, Judged]]) -> Iterator[Judgement]:
    """The judgements of a sheet. `judged` gives the trajectories of a question set and an arm by key.

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
        if cells["label"]:
            arm = judged(cells["split"], cells["arm"])
            yield _judgement(f"{path}: row {line}", path.stem, cells, arm)


def _judgement(where: str, annotator: str, cells: Mapping[str, str], arm: Mapping[str, Judged]) -> Judgement:
    if cells["key"] not in arm:
        raise UserError(f"{where}: no trajectory of {cells['arm']} on {cells['split']} has the key {cells['key']!r}")
    question, trajectory = arm[cells["key"]].question, arm[cells["key"]].trajectory
    labels = [*(label.name for label in question.labels), UNCERTAIN]
    parts = cells.get("wrong_parts", "")
    return Judgement(
        annotator=cells.get("annotator") or annotator,
        key=cells["key"],
        gold=question.label or "",
        verdict=trajectory.answer,
        label=_chosen(where, "label", [cells["label"]], labels)[0],
        errors=_chosen(where, "errors", cells.get("errors", "").split(";"), ERRORS),
        wrong_parts=() if parts == NONE else _chosen(where, "wrong_parts", parts.split(";"), PARTS) or None,
    )


def _chosen(where: str, column: str, given: Sequence[str], names: Sequence[str] | Mapping[str, str]) -> tuple[str, ...]:
    """The names that are meant, whatever their letter case. Raises UserError."""
    spellings = {name.casefold(): name for name in names}
    texts = [text.strip() for text in given if text.strip()]
    for text in texts:
        if text.casefold() not in spellings:
            raise UserError(f"{where}, {column}: {text!r} is none of {', '.join(names)}{did_you_mean(text, names)}")
    return tuple(dict.fromkeys(spellings[text.casefold()] for text in texts))


def majority(judgements: Sequence[Judgement]) -> dict[str, Outcome | None]:
    """By trajectory, the outcome that more annotators found than any other; None where they are tied."""
    outcomes: dict[str, Counter[Outcome]] = defaultdict(Counter)
    for judgement in judgements:
        outcomes[judgement.key][judgement.outcome] += 1
    return {key: _most_common(counts) for key, counts in outcomes.items()}


def _most_common(counts: Counter[Outcome]) -> Outcome | None:
    (first, most), *others = counts.most_common(2)
    return None if others and others[0][1] == most else first


def wrong_part_shares(judgements: Sequence[Judgement]) -> dict[str, float]:
    """The share of judged decompositions in which each part is wrong, over the judgements; empty without any."""
    judged = [judgement.wrong_parts for judgement in judgements if judgement.wrong_parts is not None]
    return {part: sum(part in wrong for wrong in judged) / len(judged) for part in PARTS} if judged else {}


def cohen_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    """(observed - expected agreement) / (1 - expected), with each annotator's own shares (Cohen 1960). None for no
    pairs, or where both gave one and the same label alone."""
    if not pairs:
        return None
    n = len(pairs)
    first, second = Counter(x for x, _ in pairs), Counter(y for _, y in pairs)
    expected = sum(first[label] * second[label] for label in first) / n**2
    return None if expected == 1 else (sum(x == y for x, y in pairs) / n - expected) / (1 - expected)


def print_judgements(judgements: Sequence[Judgement], arms: JudgedArms, out: TextIO | None = None) -> None:
    """Print outcomes, errors, wrong parts of decompositions, the agreement of annotators, and the accuracy by them."""
    tables = [_outcomes(judgements), _errors(judgements), _wrong_parts(judgements), _agreement(judgements)]
    for table in [*tables, _accuracy(judgements, arms)]:
        if table.rows:
            print_table(table, out)


def _outcomes(judgements: Sequence[Judgement]) -> Table:
    people = sorted({judgement.annotator for judgement in judgements})
    agreed = Counter("tied" if outcome is None else outcome for outcome in majority(judgements).values())
    rows = {name: Counter[str](each.outcome for each in judgements if each.annotator == name) for name in people}
    shown = [*OUTCOMES, *(["tied"] if agreed["tied"] else [])]
    table = new_table(
        f"{agreed.total()} trajectories judged by {len(people)} annotator(s)",
        ("annotator",),
        (*shown, "judged"),
        "model error: the annotator gives the gold label; data set error: the verdict's;\ntied: no majority",
    )
    for name, counts in (rows | ({"majority": agreed} if len(people) > 1 else {})).items():
        cells = [f"{counts[outcome]} ({100 * counts[outcome] / counts.total():.1f}%)" for outcome in shown]
        table.add_row(escape(name), *cells, str(counts.total()))
    return table


def _errors(judgements: Sequence[Judgement]) -> Table:
    caption = "share: of all judgements, which may each name several errors"
    table = new_table("Errors", ("error", "meaning"), ("judgements", "share"), caption)
    for name, count in Counter(error for judgement in judgements for error in judgement.errors).most_common():
        table.add_row(name, ERRORS[name], str(count), f"{100 * count / len(judgements):.1f}%")
    return table


def _wrong_parts(judgements: Sequence[Judgement]) -> Table:
    judged = sum(judgement.wrong_parts is not None for judgement in judgements)
    table = new_table(f"Wrong parts of the claims' triplets, in {judged} judgements", ("part",), ("share",))
    for part, share in wrong_part_shares(judgements).items():
        table.add_row(part, f"{100 * share:.1f}%")
    return table


def _agreement(judgements: Sequence[Judgement]) -> Table:
    """Of every two annotators, on the trajectories that both judged."""
    labels = defaultdict[str, dict[str, str]](dict)
    for judgement in judgements:
        labels[judgement.annotator][judgement.key] = judgement.label
    headings, caption = ("both judged", "identical", "kappa"), "kappa: Cohen's; -: not defined"
    table = new_table("Agreement of annotators on labels", ("annotators",), headings, caption)
    for first, second in combinations(sorted(labels), 2):
        pairs = [(labels[first][key], labels[second][key]) for key in labels[first] if key in labels[second]]
        identical = sum(x == y for x, y in pairs) / len(pairs) if pairs else None
        shares = ["-" if value is None else f"{value:.3f}" for value in (identical, cohen_kappa(pairs))]
        table.add_row(escape(f"{first}, {second}"), str(len(pairs)), *shares)
    return table


def _accuracy(judgements: Sequence[Judgement], arms: JudgedArms) -> Table:
    table = new_table(
        "Accuracy, in percent",
        ("question set and arm",),
        ("verdicts", "by gold labels", "by people", "left out", "wrong, not judged"),
        "by people: the majority's label in place of the gold label, without what is uncertain or tied; verdicts that\n"
        "nobody judged count by the gold label",
    )
    agreed = majority(judgements)
    for (split, arm), judged in arms.items():
        by_gold = {key: each.trajectory.answer == each.question.label for key, each in judged.items()}
        left_out = {key for key in judged if key in agreed and agreed[key] in (None, "uncertain")}
        by_people = [
            agreed[key] in ("right", "data set error") if key in agreed else is_right
            for key, is_right in by_gold.items()
            if key not in left_out
        ]
        not_judged = sum(not is_right and key not in agreed for key, is_right in by_gold.items())
        shares = [f"{100 * sum(some) / len(some):.1f}" if some else "-" for some in ([*by_gold.values()], by_people)]
        table.add_row(escape(f"{split}, {arm}"), str(len(judged)), *shares, str(len(left_out)), str(not_judged))
    return table
