"""MuSiQue-Ans (Trivedi et al. 2022, arXiv 2108.00573). MuSiQue-Full, half of it unanswerable, is not supported."""

from __future__ import annotations

from ratchet.questions.benchmark import HubDataset
from ratchet.questions.formats import FLASHRAG, Format, Row, json_list, texts

TITLE = "MuSiQue"
ABOUT = "questions of two to four hops, made so that no hop can be skipped; 19,938 / 2,417; kind: 2hop, 3hop1..."
LICENCE = "CC BY 4.0"
SOURCE = "FlashRAG's data sets, or StonyBrookNLP/musique (musique_ans)"
GOLD = "official: titles of the supporting paragraphs; FlashRAG: none"
SPLITS = {"train": ("musique_ans_v1.0_train.jsonl",), "dev": ("musique_ans_v1.0_dev.jsonl",)}
DEFAULT_SPLIT = "dev"
HUB = (
    HubDataset("dgslibisey/MuSiQue", None, {"train": "train", "dev": "validation"}),
    HubDataset("RUC-NLPIR/FlashRAG_datasets", "musique", {"train": "train", "dev": "dev"}),
)


def _released(row: Row) -> Row:
    if not row.get("answerable", True):
        raise ValueError("an unanswerable question: this is MuSiQue-Full; take the musique_ans files")
    return {
        "id": row["id"],
        "text": row["question"],
        "answers": texts(row["answer"], row.get("answer_aliases")),
        "gold_titles": texts([one["title"] for one in json_list(row["paragraphs"]) if one.get("is_supporting")]),
        "kind": row["id"].partition("__")[0],
    }


FORMATS = (FLASHRAG, Format("official", ("id", "question", "answer", "paragraphs"), _released))
