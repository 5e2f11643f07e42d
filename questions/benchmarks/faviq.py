"""FaVIQ (Park et al. 2022, arXiv 2107.02153): claims made of ambiguous questions (A set) and regular ones (R set).

The release's positive passage (it holds the answer to the question that the claim was made of; silver, found by TF-IDF)
is gold; positive and negative passages make a corpus, which does not say which is which.
"""

from __future__ import annotations

from collections.abc import Iterable

from questions.benchmark import Document
from questions.formats import Format, Row, texts
from questions.labels import FEVER_TWO, claim_fields

TITLE = "FaVIQ"
ABOUT = (
    "claims made of people's questions, in lower case; A: 17,008 / 4,260 / 4,688; R: 140,977 / 15,566 / 5,877; 2 labels"
)
LICENCE = "not stated"
SOURCE = "faviq.github.io (the A set's test on request)"
GOLD = "document ids of the corpus that `python -m questions evidence` makes, and titles of Wikipedia pages"
SPLITS = {
    **{split: (f"faviq_a_set/{split}.jsonl", f"faviq_a_set_v1.2/{split}.jsonl") for split in ("train", "dev", "test")},
    **{
        f"r_{split}": (f"faviq_r_set/{split}.jsonl", f"faviq_r_set_v1.2/{split}.jsonl")
        for split in ("train", "dev", "test")
    },
}
DEFAULT_SPLIT = "dev"


def _released(row: Row) -> Row:
    passage = row.get("positive_evidence") or {}
    return {
        "id": str(row["id"]),
        **claim_fields(row["claim"], FEVER_TWO, row["label"]),
        "gold_ids": [f"faviq:{passage['id']}"] if passage else [],
        "gold_titles": texts(passage.get("title")),
    }


def documents(row: Row) -> Iterable[Document]:
    """The evidence that a row carries."""
    for passage in (row.get("positive_evidence"), row.get("negative_evidence")):
        if passage:
            yield Document(f"faviq:{passage['id']}", passage["text"], passage.get("title") or "")


FORMATS = (Format("official", ("id", "claim", "label"), _released),)
