"""Natural Questions, open domain (Kwiatkowski et al. 2019; Lee et al. 2019, arXiv 1906.00300)."""

from __future__ import annotations

from ratchet.questions.benchmark import HubDataset
from ratchet.questions.formats import FLASHRAG, Format, Row, texts

TITLE = "NQ"
ABOUT = "questions that people typed into a search engine, with short answers; 79,168 / 8,757 / 3,610"
LICENCE = "CC BY-SA 3.0 (the release)"
SOURCE = "FlashRAG's data sets, or google-research-datasets/natural-questions (nq_open)"
GOLD = "none"
SPLITS = {
    "train": ("NQ-open.train.jsonl",),
    "dev": (),
    "test": ("NQ-open.dev.jsonl",),  # the release's dev is what everyone tests on
}
DEFAULT_SPLIT = "test"
HUB = (
    HubDataset("RUC-NLPIR/FlashRAG_datasets", "nq", {"train": "train", "dev": "dev", "test": "test"}),
    HubDataset("google-research-datasets/nq_open", None, {"train": "train", "test": "validation"}),
)


def _open(row: Row) -> Row:
    return {"text": row["question"], "answers": texts(row["answer"])}


FORMATS = (FLASHRAG, Format("official", ("question", "answer"), _open))
