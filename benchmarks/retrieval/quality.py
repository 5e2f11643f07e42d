"""Ranking quality on real data: every engine on the same chunks, terms, k1 and b.

    datamorgana    recall@10 and nDCG@10 of the gold documents, dev questions; a document ranks with its best chunk
    openqa         share of the questions with an answer string in the first 1, 5 and 20 passages, both normalised

Differences come with the half width of their 95% interval (paired, over questions).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.retrieval.baselines import Engine, empty_folder
from benchmarks.retrieval.corpus import Query, Rows, columns_of
from benchmarks.retrieval.oracle import Oracle, top
from benchmarks.retrieval.timing import log
from index_build.chunks import Chunker
from inference.tokenizer import load_tokenizer
from ratchet.config import IndexConfig
from ratchet.errors import UserError
from ratchet.files import read_jsonl
from ratchet.records import with_title
from ratchet.text import normalise_answer
from retrieval.index import Ranking
from retrieval.sparse.analyzer import Analyzer

DEPTH = 100
ORACLE = "brute force"
Values = dict[str, list[float]]
"""Measure to one number a question."""


@dataclass(frozen=True)
class Chunks:
    """Chunks as vectors, and what is needed to judge a ranking of them."""

    rows: Rows
    numbers: dict[str, int]
    """Term to its number."""
    documents: list[str]
    """Document id of every chunk."""
    texts: list[str]

    def query(self, words: Analyzer, question: str) -> Query:
        found = sorted(self.numbers[term] for term in words.terms(question) if term in self.numbers)
        return Query(np.array(found, np.int64), np.ones(len(found), np.float32))


@dataclass(frozen=True)
class Question:
    """A question with what a good ranking of it contains."""

    text: str
    gold: frozenset[str]
    """Ids of the documents that hold the answer."""
    answers: tuple[str, ...]


def quality(data: Path, tokenizer: str, engines: Sequence[Engine]) -> dict[str, Any]:
    """Return, by question set, measure and engine, [mean, difference to ours, half width of its interval].

    The first engine is ours.

    `data` is a folder with datamorgana or openqa in it, or both; neither is a UserError.
    """
    sets = {name: data / name for name in ("datamorgana", "openqa") if (data / name / "corpus.jsonl.gz").is_file()}
    if not sets:
        raise UserError(f"--quality {data}: has no datamorgana/corpus.jsonl.gz and no openqa/corpus.jsonl.gz")
    results: dict[str, Any] = {}
    for name, folder in sets.items():
        log(f"{name}: chunks")
        words = Analyzer(IndexConfig.model_fields["stemmer"].default, IndexConfig.model_fields["stop_words"].default)
        chunks = _read_chunks(folder / "corpus.jsonl.gz", words, tokenizer if name == "datamorgana" else None)
        questions = list(_read_questions(folder, name))
        queries = [chunks.query(words, question.text) for question in questions]
        oracle = Oracle(columns_of(chunks.rows))
        rankings = {}
        for engine in engines:
            log(f"{name}: {engine.name}")
            rankings[engine.name] = _rank(engine, chunks.rows, queries)
        rankings[ORACLE] = [top(oracle.scores(query), DEPTH) for query in queries]
        measure = _gold_measures if name == "datamorgana" else _answer_measures
        values = {engine: measure(chunks, questions, ranked) for engine, ranked in rankings.items()}
        results[name] = {
            "chunks": chunks.rows.documents,
            "questions": len(questions),
            "exact": {e.name: oracle.judge(rankings[e.name], queries, DEPTH) for e in engines},
            "measures": _compare(values, engines[0].name),
        }
    return results


def _rank(engine: Engine, rows: Rows, queries: Sequence[Query]) -> list[Ranking]:
    """An empty query has an empty ranking, whatever the engine makes of it."""
    asked = [i for i, query in enumerate(queries) if len(query.terms)]
    with tempfile.TemporaryDirectory() as name:
        engine.build(engine.prepare(rows), empty_folder(Path(name) / "index"))
        engine.open(Path(name) / "index")
        found = dict(zip(asked, engine.search([queries[i] for i in asked], DEPTH, 1), strict=True))
    nothing = Ranking.empty()
    return [found.get(i, nothing) for i in range(len(queries))]


def _compare(values: dict[str, Values], ours: str) -> dict[str, dict[str, list[float]]]:
    """Means, and differences to ours."""
    table: dict[str, dict[str, list[float]]] = {}
    for measure, mine in values[ours].items():
        table[measure] = {}
        for engine, numbers in values.items():
            gap = np.array(mine) - np.array(numbers[measure])
            half = 1.96 * float(gap.std(ddof=1)) / len(gap) ** 0.5 if len(gap) > 1 else 0.0
            table[measure][engine] = [float(np.mean(numbers[measure])), float(gap.mean()), half]
    return table


def _read_chunks(path: Path, words: Analyzer, tokenizer: str | None) -> Chunks:
    """Cut as index_build cuts by default; without a tokenizer every document is one chunk."""
    defaults = IndexConfig.model_fields
    chunker = None
    if tokenizer is not None:
        size, overlap = defaults["chunk_tokens"].default, defaults["chunk_overlap"].default
        chunker = Chunker(load_tokenizer(tokenizer, None), size, overlap, tokenizer)
    numbers: dict[str, int] = {}
    documents, texts, offsets = [], [], [0]
    terms: list[int] = []
    values: list[int] = []
    for _, row in read_jsonl(path, "document"):
        spans = chunker.cut([row["text"]])[0] if chunker else [(0, len(row["text"]))]
        for start, end in spans:
            text = with_title(row.get("title") or "", row["text"][start:end])
            counts = Counter(numbers.setdefault(term, len(numbers)) for term in words.terms(text))
            for term, count in sorted(counts.items()):
                terms.append(term)
                values.append(count)
            documents.append(row["id"])
            texts.append(text)
            offsets.append(len(terms))
    rows = Rows(
        "bm25",
        len(numbers),
        np.array(offsets, np.int64),
        np.array(terms, np.int32),
        np.array(values, np.uint16),
        defaults["k1"].default,
        defaults["b"].default,
    )
    return Chunks(rows, numbers, documents, texts)


def _read_questions(folder: Path, name: str) -> Iterator[Question]:
    for path in [folder / "dev.jsonl"] if name == "datamorgana" else sorted(folder.glob("*_test.jsonl")):
        for _, row in read_jsonl(path, "question"):
            answers = tuple(filter(None, map(normalise_answer, row.get("golden_answers", ()))))
            yield Question(row["question"], frozenset(row.get("document_ids", ())), answers)


def _gold_measures(chunks: Chunks, questions: Sequence[Question], rankings: Sequence[Ranking]) -> Values:
    values: Values = {"recall@10": [], "nDCG@10": []}
    discounts = 1 / np.log2(np.arange(2, 12))
    for question, ranking in zip(questions, rankings, strict=True):
        ranked = list(dict.fromkeys(chunks.documents[chunk] for chunk in ranking.chunks))[:10]
        hits = np.array([document in question.gold for document in ranked] + [False] * (10 - len(ranked)))
        values["recall@10"].append(float(hits.sum()) / len(question.gold))
        values["nDCG@10"].append(float(discounts[hits].sum() / discounts[: len(question.gold)].sum()))
    return values


def _answer_measures(chunks: Chunks, questions: Sequence[Question], rankings: Sequence[Ranking]) -> Values:
    depths = (1, 5, 20)
    values: Values = {f"answer recall@{depth}": [] for depth in depths}
    passages: dict[int, str] = {}
    for question, ranking in zip(questions, rankings, strict=True):
        first = DEPTH
        for rank, chunk in enumerate(ranking.chunks[: max(depths)].tolist()):
            if chunk not in passages:
                passages[chunk] = f" {normalise_answer(chunks.texts[chunk])} "
            if any(f" {answer} " in passages[chunk] for answer in question.answers):
                first = rank
                break
        for depth in depths:
            values[f"answer recall@{depth}"].append(float(first < depth))
    return values
