"""SciFact (Wadden et al. 2020, arXiv 2004.14974): scientific claims, and the abstracts that decide them.

A claim's label is that of its evidence; without evidence it is NOT ENOUGH INFO. Gold are the abstracts that decide it;
cited ones that do not are none. The corpus is corpus.jsonl, beside the claims. The test's labels are kept secret.

`train_two` and `dev_two` leave out the claims without evidence and have two labels to choose from, for systems whose
verdict is binary, such as MERMAID (2026, arXiv 2601.22361).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ratchet.core.records import Document
from ratchet.questions.benchmark import Benchmark, PlacedRow
from ratchet.questions.formats import Format, Row
from ratchet.questions.labels import SCIFACT, SCIFACT_TWO, claim_fields

TRAIN, DEV = (tuple(f"{folder}claims_{split}.jsonl" for folder in ("", "data/")) for split in ("train", "dev"))


def _rows(placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
    for place, row in placed:
        if not split.endswith("_two") or "evidence" not in row:
            yield place, row
        elif row["evidence"]:
            yield place, row | {"two": True}


def _released(row: Row) -> Row:
    labels = {piece["label"] for pieces in row["evidence"].values() for piece in pieces}
    if len(labels) > 1:
        raise ValueError(f"evidence with the labels {' and '.join(sorted(labels))}: no label of a claim")
    return {
        "id": str(row["id"]),
        **claim_fields(
            row["claim"], SCIFACT_TWO if row.get("two") else SCIFACT, labels.pop() if labels else "NOT ENOUGH INFO"
        ),
        "gold_ids": [f"scifact:{document}" for document in row["evidence"]],
    }


def _documents(row: Row) -> Iterable[Document]:
    yield Document(f"scifact:{row['doc_id']}", " ".join(sentence.strip() for sentence in row["abstract"]), row["title"])


BENCHMARK = Benchmark(
    title="SciFact",
    about="claims that experts wrote, with abstracts; 809 / 300; 3 labels",
    licence="CC BY 4.0 (claims); ODC-By (abstracts)",
    source="allenai/scifact",
    gold="document ids of the corpus that `ratchet questions evidence` makes: scifact: and the abstract's id",
    splits={"train": TRAIN, "dev": DEV, "train_two": TRAIN, "dev_two": DEV},
    default_split="dev",
    formats=(Format("official", ("id", "claim", "evidence"), _released),),
    evidence=("corpus.jsonl",),
    rows=_rows,
    documents=_documents,
)
