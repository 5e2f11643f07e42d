"""FEVEROUS (Aly et al. 2021, arXiv 2106.05707): claims about Wikipedia's sentences and tables, three labels.

`dev_two` is ours: dev without the claims of the third label, and with two labels to choose from. It is for copies that
have no such claims, where a label that is never right would only mislead.

Formats: the release, whose evidence is ids of sentences and cells (gold: titles), and the text form that some copies
have, evidence as lines of page, tab, sentence (a corpus can be made of it: one document a page).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ratchet.core.records import Document
from ratchet.questions.benchmark import Benchmark, PlacedRow
from ratchet.questions.formats import Format, Row, texts
from ratchet.questions.labels import FEVER, FEVER_TWO, claim_fields

DEV = ("feverous_dev_challenges.jsonl", "dev.jsonl", "dev.json")
ELEMENT = re.compile(r"_(?:sentence|(?:header_)?cell|table_caption|table|item|list|section|title)(?:_\d+)*$")
"""The end of an evidence id, behind the page's title."""
LINK = re.compile(r"\[\[[^|\[\]]*\|(.*?)\]\]")


def _rows(placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
    """The release's files begin with an empty row, which is skipped."""
    for place, row in placed:
        if "claim" not in row or (row["claim"] and split != "dev_two"):
            yield place, row
        elif row["claim"] and str(row.get("label")).casefold() != FEVER[2].name.casefold():
            yield place, row | {"two": True}


def _released(row: Row) -> Row:
    if isinstance(row["evidence"], str):
        titles = [title for title, _ in _lines(row)]
    else:
        titles = [ELEMENT.sub("", one) for evidence in row["evidence"] for one in evidence["content"]]
    return {
        "id": str(row["id"]),
        **claim_fields(row["claim"], FEVER_TWO if row.get("two") else FEVER, row["label"]),
        "gold_ids": texts([document.id for document in _documents(row)]),
        "gold_titles": texts(titles),
        "kind": row.get("challenge") or "",
    }


def _documents(row: Row) -> Iterable[Document]:
    """None of a row of the release, whose texts are in the Wikipedia that comes with it."""
    if isinstance(row["evidence"], str):
        yield from (Document(f"feverous:{title}", text, title) for title, text in _lines(row))


def _lines(row: Row) -> list[tuple[str, str]]:
    """(page, sentence) of every line, links as the words that a reader sees."""
    lines = [line.partition("\t") for line in row["evidence"].splitlines()]
    if not all(tab for _, tab, _ in lines):
        raise ValueError("a line of the evidence has no tab between page and sentence")
    return [(title, LINK.sub(r"\1", text).replace("[[", "").replace("]]", "")) for title, _, text in lines]


BENCHMARK = Benchmark(
    title="FEVEROUS",
    about="claims to be verified with sentences and tables of Wikipedia; 71,291 / 7,890; 3 labels; kind: the challenge",
    licence="CC BY-SA 3.0, Wikipedia's licence",
    source="fever.ai/dataset/feverous.html",
    gold="titles of Wikipedia pages; with texts, also document ids of the corpus made of them",
    splits={"train": ("feverous_train_challenges.jsonl", "train.jsonl", "train.json"), "dev": DEV, "dev_two": DEV},
    default_split="dev",
    formats=(Format("official", ("id", "claim", "label", "evidence"), _released),),
    rows=_rows,
    documents=_documents,
)
