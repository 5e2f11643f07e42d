"""PopQA (Mallen et al. 2023, arXiv 2212.10511). It has one split: take `rows` of it to train on, and others to test.

Its rows name the Wikipedia page of their subject, but nobody checked that the answer is there: not taken as gold.
"""

from __future__ import annotations

from ratchet.questions.benchmark import HubDataset
from ratchet.questions.formats import FLASHRAG, Format, Row, json_list, texts

TITLE = "PopQA"
ABOUT = "questions from 16 templates about entities of all popularities; 14,267 in one split; kind: the relation"
LICENCE = "not stated for the questions; the code is MIT"
SOURCE = "FlashRAG's data sets, or AlexTMallen/adaptive-retrieval (data/popQA.tsv)"
GOLD = "none"
SPLITS = {"test": ("popQA.tsv", "data/popQA.tsv")}
DEFAULT_SPLIT = "test"
HUB = (
    HubDataset("RUC-NLPIR/FlashRAG_datasets", "popqa", {"test": "test"}),
    HubDataset("akariasai/PopQA", None, {"test": "test"}),
)


def _table(row: Row) -> Row:
    answers = texts(json_list(row["possible_answers"]))
    return {"id": str(row["id"]), "text": row["question"], "answers": answers, "kind": row.get("prop") or ""}


FORMATS = (FLASHRAG, Format("official", ("id", "question", "possible_answers"), _table))
