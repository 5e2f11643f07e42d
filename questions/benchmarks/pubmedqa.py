"""PubMedQA, the labelled thousand (Jin et al. 2019, arXiv 1909.06146): yes, no or maybe, by an abstract.

`test` is the official one, the 500 ids in test_ground_truth.json beside the questions; `train` the other 500, which the
paper cross-validates on; `all` has both. The corpus is the abstracts without their conclusions, one document each: the
conclusion (LONG_ANSWER) gives the label away and is in none, and neither is the paper's title, mostly the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from ratchet.core.errors import UserError
from ratchet.core.records import Document
from ratchet.questions.benchmark import Benchmark, HubDataset, PlacedRow, first_file
from ratchet.questions.formats import Format, Row
from ratchet.questions.labels import YES_NO_MAYBE, parse_label
from ratchet.questions.load import read_rows

SOURCE = "pubmedqa/pubmedqa (data/ori_pqal.json and data/test_ground_truth.json)"
TEST_IDS = "test_ground_truth.json"


def _rows(placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
    """The release is one object, PubMed id to question."""
    for place, row in placed:
        if not row or not all(isinstance(entry, dict) and "QUESTION" in entry for entry in row.values()):
            yield place, row
            continue
        test = _test_ids(folder, split) if split != "all" else frozenset()
        if missing := sorted(test - row.keys()):
            raise UserError(f"{place}: has no {missing[0]}, which is in {TEST_IDS}; get both files again")
        for pmid, entry in row.items():
            if split == "all" or (pmid in test) == (split == "test"):
                yield f"{place}, {pmid}", entry | {"pmid": pmid}


def _test_ids(folder: Path | None, split: str) -> frozenset[str]:
    path = first_file(folder, [TEST_IDS]) if folder else None
    if path is None:
        raise UserError(
            f"{folder}: no {TEST_IDS} beside the questions, which says whose split {split!r} is; get it from "
            f"{SOURCE}, or take `split: all`"
        )
    return frozenset(pmid for _, row in read_rows(path) for pmid in row)


def _question(pmid: str, text: str, decision: str) -> Row:
    return {
        "id": pmid,
        "text": text,
        "labels": YES_NO_MAYBE,
        "label": parse_label(decision, YES_NO_MAYBE),
        "gold_ids": [f"pubmedqa:{pmid}"],
    }


def _documents(row: Row) -> Iterable[Document]:
    if "pmid" in row:
        pmid, contexts, headings = row["pmid"], row["CONTEXTS"], row.get("LABELS")
    else:
        pmid, contexts, headings = row["pubid"], row["context"]["contexts"], row["context"].get("labels")
    parts = (
        zip_longest(headings or (), contexts) if len(headings or ()) == len(contexts) else ((None, c) for c in contexts)
    )
    yield Document(f"pubmedqa:{pmid}", "\n".join(f"{heading}: {text}" if heading else text for heading, text in parts))


BENCHMARK = Benchmark(
    title="PubMedQA",
    about="research questions that an abstract answers with yes, no or maybe; 500 / 500 (all: 1,000)",
    licence="MIT",
    source=SOURCE,
    gold="document ids of the corpus that `ratchet questions evidence` makes: pubmedqa: and the PubMed id",
    splits=dict.fromkeys(("train", "test", "all"), ("ori_pqal.json", "data/ori_pqal.json")),
    default_split="test",
    hub=(HubDataset("qiaojin/PubMedQA", "pqa_labeled", {"all": "train"}),),
    formats=(
        Format(
            "official",
            ("pmid", "QUESTION", "final_decision"),
            lambda row: _question(row["pmid"], row["QUESTION"], row["final_decision"]),
        ),
        Format(
            "hub",
            ("pubid", "question", "final_decision"),
            lambda row: _question(str(row["pubid"]), row["question"], row["final_decision"]),
        ),
    ),
    rows=_rows,
    documents=_documents,
)
