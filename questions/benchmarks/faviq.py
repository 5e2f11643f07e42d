"""FaVIQ (Park et al. 2022, arXiv 2107.02153): claims made of ambiguous questions (A set) and regular ones (R set).

Its claims have two labels. Tool-MAD (Jeong et al. 2026, arXiv 2601.04742, section IV-C) asks for three, NOT ENOUGH INFO
among them, which is then never right: that is the default. The splits that end in `_two` ask for the release's two.

The release's positive passage (it holds the answer to the question that the claim was made of; silver, found by TF-IDF)
is gold; positive and negative passages make a corpus, which does not say which is which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ratchet.core.records import Document
from ratchet.questions.benchmark import Benchmark, PlacedRow
from ratchet.questions.formats import Format, Row, texts
from ratchet.questions.labels import FEVER, FEVER_TWO, claim_fields

SPLITS = {
    **{split: (f"faviq_a_set/{split}.jsonl", f"faviq_a_set_v1.2/{split}.jsonl") for split in ("train", "dev", "test")},
    **{
        f"r_{split}": (f"faviq_r_set/{split}.jsonl", f"faviq_r_set_v1.2/{split}.jsonl")
        for split in ("train", "dev", "test")
    },
}
SPLITS |= {f"{split}_two": files for split, files in SPLITS.items()}


def _rows(placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
    for place, row in placed:
        yield place, row | {"two": True} if split.endswith("_two") else row


def _released(row: Row) -> Row:
    passage = row.get("positive_evidence") or {}
    return {
        "id": str(row["id"]),
        **claim_fields(row["claim"], FEVER_TWO if row.get("two") else FEVER, row["label"]),
        "gold_ids": [f"faviq:{passage['id']}"] if passage else [],
        "gold_titles": texts(passage.get("title")),
    }


def _documents(row: Row) -> Iterable[Document]:
    for passage in (row.get("positive_evidence"), row.get("negative_evidence")):
        if passage:
            yield Document(f"faviq:{passage['id']}", passage["text"], passage.get("title") or "")


BENCHMARK = Benchmark(
    title="FaVIQ",
    about="claims made of people's questions, in lower case; A: 17,008 / 4,260 / 4,688; R: 140,977 / 15,566 / 5,877; "
    "2 labels, asked with 3 (dev_two and so on: with 2)",
    licence="not stated",
    source="faviq.github.io (the A set's test on request)",
    gold="document ids of the corpus that `ratchet questions evidence` makes, and titles of Wikipedia pages",
    splits=SPLITS,
    default_split="dev",
    formats=(Format("official", ("id", "claim", "label"), _released),),
    rows=_rows,
    documents=_documents,
)
