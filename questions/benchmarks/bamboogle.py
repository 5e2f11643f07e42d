"""Bamboogle (Press et al. 2023, arXiv 2210.03350). Small: a difference of ten points is within its noise."""

from __future__ import annotations

from ratchet.questions.benchmark import HubDataset
from ratchet.questions.formats import FLASHRAG, Format, Row, texts

TITLE = "Bamboogle"
ABOUT = "two-hop questions that a search engine answered wrongly; 125 in one split"
LICENCE = "MIT"
SOURCE = "FlashRAG's data sets, or ofirpress/self-ask (a table)"
GOLD = "none"
SPLITS = {"test": ("Bamboogle Prerelease - Sheet1.csv", "bamboogle.csv")}
DEFAULT_SPLIT = "test"
HUB = (
    HubDataset("RUC-NLPIR/FlashRAG_datasets", "bamboogle", {"test": "test"}),
    HubDataset("chiayewken/bamboogle", None, {"test": "test"}),
)


def _table(row: Row) -> Row:
    return {"text": row["Question"], "answers": texts(row["Answer"])}


FORMATS = (FLASHRAG, Format("official", ("Question", "Answer"), _table))
