"""MedQA's English exam questions, USMLE, with four options (Jin et al. 2020, arXiv 2009.13081).

The labels are the options: a letter, and what it stands for. Two formats: the release's lines, a split a file, and one
file `medqa.json` with dev and test, which some collections of benchmarks have. Count before you compare: there, dev and
test can be the two halves of the release's test (636 and 637 of 1,273).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ratchet.questions.benchmark import Benchmark, HubDataset, PlacedRow
from ratchet.questions.formats import Format, Row
from ratchet.questions.labels import choice_labels, parse_label


def _rows(placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
    """The rows of a split, where a file has all of them by name."""
    for place, row in placed:
        if isinstance(row.get(split), list):
            yield from ((f"{place}, {split} {number}", one) for number, one in enumerate(row[split], 1))
        else:
            yield place, row


def _fields(row: Row, options: Row, letter: str) -> Row:
    labels = choice_labels(options)
    return {"text": row["question"], "labels": labels, "label": parse_label(letter, labels)}


def _released(row: Row) -> Row:
    return {**_fields(row, row["options"], row["answer_idx"]), "kind": row.get("meta_info") or ""}


def _collected(row: Row) -> Row:
    return {"id": str(row["id"]), **_fields(row, row["choices"], row["answer"])}


BENCHMARK = Benchmark(
    title="MedQA (USMLE, 4 options)",
    about="medical exam questions with four options; 10,178 / 1,272 / 1,273; labels: the letters of the options",
    licence="MIT (the repository)",
    source="jind11/MedQA (data_clean/questions/US/4_options)",
    gold="none",
    splits={
        split: (
            f"phrases_no_exclude_{split}.jsonl",
            f"data_clean/questions/US/4_options/phrases_no_exclude_{split}.jsonl",
            *(("medqa.json",) if split != "train" else ()),
        )
        for split in ("train", "dev", "test")
    },
    default_split="test",
    hub=(HubDataset("GBaker/MedQA-USMLE-4-options", None, {"train": "train", "test": "test"}),),
    formats=(
        Format("official", ("question", "options", "answer_idx"), _released),
        Format("collected", ("id", "question", "choices", "answer"), _collected),
    ),
    rows=_rows,
)
