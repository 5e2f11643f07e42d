"""A retrieval test collection in BEIR's form (Thakur et al. 2021, arXiv 2104.08663).

The folder has `queries.jsonl` with `_id` and `text`, and `qrels/<split>.tsv` with the relevance of documents. A split's
questions are the queries that its judgements name, and gold are the documents judged above 0. The corpus,
`corpus.jsonl`, is read where `index.documents` names the folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ratchet.core.errors import UserError
from ratchet.questions.benchmark import Benchmark, PlacedRow, first_file
from ratchet.questions.formats import Format, Row
from ratchet.retrieval.trec import read_qrels

SPLITS = ("train", "dev", "test")


def _rows(placed: Iterable[PlacedRow], split: str, folder: Path | None) -> Iterator[PlacedRow]:
    path = first_file(folder or Path(), (f"qrels/{split}.tsv",))
    if path is None:
        raise UserError(f"{folder}: no qrels/{split}.tsv beside the queries; name another split, or bring the file")
    judged = read_qrels(path)
    for place, row in placed:
        found = judged.pop(str(row.get("_id")), None)
        if found is not None:
            yield place, row | {"gold_ids": [document for document, relevance in found.items() if relevance > 0]}
    if judged:
        raise UserError(f"{path}: judges the query {next(iter(judged))}, which {folder}/queries.jsonl does not have")


def _query(row: Row) -> Row:
    return {"id": str(row["_id"]), "text": row["text"], "gold_ids": row["gold_ids"]}


BENCHMARK = Benchmark(
    title="BEIR",
    about="queries of a retrieval test collection in BEIR's form, without answers",
    licence="each collection has its own",
    source="beir-cellar/beir (the zip of a collection)",
    gold="document ids of the folder's corpus.jsonl",
    splits=dict.fromkeys(SPLITS, ("queries.jsonl",)),
    default_split="test",
    formats=(Format("BEIR", ("_id", "text"), _query),),
    rows=_rows,
)
