"""FEVER-symmetric 0.2 (Schuster et al. 2019, arXiv 1908.05267): claims judged by one sentence of evidence each.

Every claim is there twice, once with evidence that supports it and once with evidence that refutes it, so a claim alone
has no label: a system that looks at claims only is right in half of the cases. `dev` and `test`, the published task,
therefore have the evidence in the text of the question.

`dev_open` and `test_open` are ours: claims alone, to be verified with a corpus. They are the pairs whose evidence is
the sentence that Wikipedia has (the original pair, and the one whose id ends in 3: the new claim with the old
evidence); the sentences that were made up are skipped, in their corpus too. Ids: the original pair has FEVER's own,
the others six noughts and 2, 3 or 4 behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ratchet.core.records import Document
from ratchet.questions.benchmark import Benchmark, PlacedRow
from ratchet.questions.evidence import document_by_content
from ratchet.questions.formats import Format, Row
from ratchet.questions.labels import FEVER_TWO, claim_fields

DEV = ("fever_symmetric_dev.jsonl", "symmetric_v0.2/fever_symmetric_dev.jsonl")
TEST = ("fever_symmetric_test.jsonl", "symmetric_v0.2/fever_symmetric_test.jsonl")
MADE_UP = re.compile("000000[24]$")
"""Ids of the pairs whose evidence was made up."""


def _rows(placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
    for place, row in placed:
        if not split.endswith("_open") or "claim" not in row:
            yield place, row
        elif not MADE_UP.search(str(row.get("id"))):
            yield place, row | {"open": True}


def _released(row: Row) -> Row:
    text = row["claim"] if row.get("open") else f"{row['claim']}\nEvidence: {_sentence(row)}"
    return {
        "id": str(row["id"]),
        **claim_fields(text, FEVER_TWO, row["label"] if "label" in row else row["gold_label"]),
        "gold_ids": [document.id for document in _documents(row)],
    }


def _documents(row: Row) -> Iterable[Document]:
    return [document_by_content("fever_symmetric", _sentence(row))]


def _sentence(row: Row) -> str:
    """In one line, so that it cannot pass for another part of the question."""
    return " ".join(str(row["evidence_sentence"] if "evidence_sentence" in row else row["evidence"]).split())


BENCHMARK = Benchmark(
    title="FEVER-symmetric",
    about="claim and evidence, each claim with both labels; 708 / 712 pairs; *_open: claims alone, 354 / 356; 2 labels",
    licence="CC BY-SA 3.0, Wikipedia's licence",
    source="TalSchuster/FeverSymmetric (symmetric_v0.2)",
    gold="document ids of the corpus that `ratchet questions evidence` makes",
    splits={"dev": DEV, "test": TEST, "dev_open": DEV, "test_open": TEST},
    default_split="test",
    formats=(
        Format("official", ("id", "claim", "evidence", "label"), _released),
        Format("0.1", ("id", "claim", "evidence_sentence", "label"), _released),
    ),
    rows=_rows,
    documents=_documents,
)
