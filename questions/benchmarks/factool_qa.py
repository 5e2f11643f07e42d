"""FacTool's knowledge-based questions (Chern et al. 2023, arXiv 2307.13528): claims out of ChatGPT's answers.

Formats: the release, an answer with its claims a line; and FIRE's (Xie et al. 2025), a claim a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ratchet.questions.benchmark import PlacedRow
from ratchet.questions.formats import Format, Row
from ratchet.questions.labels import TRUE_FALSE, claim_fields

TITLE = "FacTool-QA"
ABOUT = "claims that ChatGPT's answers to 50 questions make; 233 in one split; true or false"
LICENCE = "not stated for the data; the code is Apache-2.0"
SOURCE = "GAIR-NLP/factool (datasets/knowledge_qa), or mbzuai-nlp/fire (datasets/factool_qa)"
GOLD = "none"
SPLITS = {"test": ("knowledge_qa.jsonl", "datasets/knowledge_qa/knowledge_qa.jsonl", "data.jsonl")}
DEFAULT_SPLIT = "test"


def rows(placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
    """The rows of the split."""
    for answer, (place, row) in enumerate(placed, 1):
        if "claims" not in row:
            yield place, row
            continue
        for number, claim in enumerate(row["claims"], 1):
            yield f"{place}, claim {number}", {"id": f"{answer}.{number}", **claim}


def _claim(row: Row) -> Row:
    return {**({"id": row["id"]} if "id" in row else {}), **claim_fields(row["claim"], TRUE_FALSE, row["label"])}


FORMATS = (Format("claims", ("claim", "label"), _claim),)
