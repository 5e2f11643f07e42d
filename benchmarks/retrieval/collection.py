"""BM25 on a test collection of your own: our engine with each list of stop words, and bm25s with the same words.

    python -m benchmarks.retrieval.collection CORPUS.jsonl.gz QUERIES.jsonl [--qrels TEST.tsv] [--k1 1.2 --b 0.75]

In BEIR's form (`_id`, `text`; qrels: query, document and grade) or FlashRAG's (`question`, `golden_answers`: a passage
that holds an answer is relevant, and recall is the share of queries with one). bm25s: pip install '.[benchmark]'.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.commands.main import run_command
from ratchet.core.config import IndexConfig
from ratchet.core.files import write_jsonl
from ratchet.core.tables import new_table, print_table
from ratchet.core.words import NAMED, padded_words
from ratchet.index_build.build import build_index
from ratchet.index_build.chunks import word_tokenizer
from ratchet.retrieval.loader import open_folder
from ratchet.retrieval.sparse.terms import Analyzer

DEPTH = 1000


def main() -> None:
    """Print a row of measures for every list of stop words."""
    parser = argparse.ArgumentParser(description="BM25 on a test collection.")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--qrels", type=Path)
    parser.add_argument("--k1", type=float, default=0.9)
    parser.add_argument("--b", type=float, default=0.4)
    options = parser.parse_args()
    documents = [{**row, "id": row.get("_id", row.get("id"))} for row in _rows(options.corpus)]
    texts = [f"{row.get('title', '')} {row['text']}" for row in documents]
    queries = _rows(options.queries)
    asked = [str(row.get("question", row.get("text"))) for row in queries]
    relevant = _relevant(options.qrels, queries, documents, texts)
    table = new_table("", ["stop words"], ["MAP", "nDCG", "nDCG@10", "R@5", "R@20", "R@100", "as bm25s"])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "corpus.jsonl")
        fields = ("id", "text", "title")
        rows: Iterator[dict[str, Any]] = ({key: row[key] for key in fields if key in row} for row in documents)
        write_jsonl(source, rows)
        config = IndexConfig(path=f"{folder}/index", documents=(str(source),), tokenizer="words", chunk_tokens=1 << 20)
        build_index(config, word_tokenizer(), "words")
        for name, words in NAMED.items():
            index = open_folder(
                config.path, config.model_copy(update={"k1": options.k1, "b": options.b, "stop_words": name})
            )
            found = index.ranker.rank(asked, DEPTH)
            theirs = _bm25s_scores(texts, asked, Analyzer("english", words), options.k1, options.b)
            equal = [
                len(ours.scores) == 0 or np.allclose(ours.scores, np.sort(scores)[::-1][: len(ours.scores)], rtol=1e-5)
                for ours, scores in zip(found, theirs, strict=True)
            ]
            all_of_them = options.qrels is not None
            judged = [(ours.chunks, good) for ours, good in zip(found, relevant, strict=True) if good]
            measures = np.mean([_measures(*each, all_of_them) for each in judged], axis=0)
            table.add_row(name, *(f"{value:.4f}" for value in measures), f"{sum(equal)} of {len(equal)}")
    print_table(table)


def _rows(path: Path) -> list[dict[str, Any]]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _relevant(
    qrels: Path | None, queries: list[dict[str, Any]], documents: list[dict[str, Any]], texts: list[str]
) -> list[set[int]]:
    """For every query the documents that are relevant, by number."""
    if qrels is None:
        padded = list(map(padded_words, texts))
        answers = [{padded_words(answer) for answer in row["golden_answers"]} - {"  "} for row in queries]
        return [{n for n, text in enumerate(padded) if any(a in text for a in some)} for some in answers]
    numbers = {row["id"]: number for number, row in enumerate(documents)}
    found: dict[str, set[int]] = defaultdict(set)
    for line in qrels.read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        if int(grade) > 0:
            found[query].add(numbers[document])
    return [found[row["_id"]] for row in queries]


def _measures(ranked: np.ndarray, good: set[int], every: bool) -> list[float]:
    """MAP, nDCG, nDCG@10, and recall at 5, 20 and 100: of all relevant documents, or of one."""
    hits = np.isin(ranked, list(good))
    ranks = np.arange(1, DEPTH + 1)
    gains = 1 / np.log2(ranks + 1)
    precision = (np.cumsum(hits) / ranks[: len(hits)])[hits].sum() / len(good)
    ndcg = [gains[: len(hits)][:k][hits[:k]].sum() / gains[: min(k, len(good))].sum() for k in (DEPTH, 10)]
    recalls = [hits[:k].sum() / len(good) if every else hits[:k].any() for k in (5, 20, 100)]
    return [float(value) for value in (precision, *ndcg, *recalls)]


def _bm25s_scores(texts: list[str], queries: list[str], words: Analyzer, k1: float, b: float) -> list[np.ndarray]:
    import bm25s

    vocabulary: dict[str, int] = {}
    tokens = [[vocabulary.setdefault(term, len(vocabulary)) for term in words.terms(text)] for text in texts]
    index = bm25s.BM25(k1=k1, b=b, method="lucene")
    index.index((tokens, vocabulary), create_empty_token=False, show_progress=False)
    known = [[term for term in words.query_terms(query) if term in vocabulary] for query in queries]
    return [index.get_scores(terms) if terms else np.zeros(len(texts)) for terms in known]


if __name__ == "__main__":
    run_command(main)
