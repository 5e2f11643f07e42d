"""Compare BM25 of ours, bm25s and Lucene on a retrieval test collection in BEIR's form, with equal settings; and what
dense search, fusion and reranking add.

    python -m benchmarks.beir FOLDER                          prints the table, in Markdown
    python -m benchmarks.beir FOLDER --fused fused.yaml       also with a fused index of BM25 and a dense part over it,
                                                              which `ratchet index --config` built
    python -m benchmarks.beir FOLDER --brief                  one line with nDCG@10 alone
    python -m benchmarks.beir FOLDER --write                  writes it into docs/results/search.md

Programs differ in what they call a word, in stop words (left out of queries alone, or of documents too, which changes
their lengths), in the stemmer, and in how exactly they keep lengths. Each row changes one of these.
A cross-encoder with weights comes with no Python package, so the dense part's cosines stand in for one.
bm25s: pip install '.[benchmark]'. Lucene, by the jar of Pyserini: pip install '.[lucene]'.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bm25s
import Stemmer

from benchmarks.pages import RESULTS, taken, write_figures
from ratchet.commands.config import open_config
from ratchet.commands.main import run_command
from ratchet.core.config import IndexConfig, RerankConfig, SplitConfig
from ratchet.core.errors import UserError
from ratchet.core.installed import need_extra
from ratchet.core.records import Document, Question, with_title
from ratchet.core.words import STOP_WORDS
from ratchet.evaluation.formats import format_interval, format_number, format_p
from ratchet.evaluation.trec import measure_runs, parse_measures
from ratchet.index_build.build import build_index
from ratchet.index_build.chunks import word_tokenizer
from ratchet.index_build.documents import read_documents
from ratchet.questions.load import load_questions
from ratchet.retrieval.backends import lucene as java
from ratchet.retrieval.fusion import FusedIndex
from ratchet.retrieval.index import Index
from ratchet.retrieval.loader import open_folder
from ratchet.retrieval.opening import open_index
from ratchet.retrieval.reranking import Asked, RerankedIndex, Score
from ratchet.retrieval.retriever import Retriever
from ratchet.retrieval.sparse.terms import Analyzer
from ratchet.retrieval.trec import Qrels, TrecRun, read_qrels, search_documents

K1, B = 0.9, 0.4
"""The defaults of Anserini and of ours."""
OTHER_K1, OTHER_B = 1.2, 0.75
"""The defaults of Lucene and Terrier."""
DEPTH = 1000
RERANKED = 100
MEASURES = "AP,nDCG,nDCG@10,R@100"
OURS = "ours"
HEADINGS = (
    f"| program: words | MAP | nDCG | nDCG@10 | R@100 | MAP from ours | MAP, k1 = {OTHER_K1}, b = {OTHER_B} |",
    "|---|---|---|---|---|---|---|",
)
Runs = dict[str, TrecRun]
Program = Callable[[float, float], TrecRun]
Tokens = list[list[str]]


def main() -> None:
    """Measure every program, and print or write the table."""
    parser = argparse.ArgumentParser(description="BM25 of several programs, with equal settings.")
    parser.add_argument("folder", type=Path, help="corpus.jsonl, queries.jsonl and qrels/test.tsv, as BEIR has them")
    parser.add_argument("--fused", type=Path, help="the config of a fused index over it, which is built")
    parser.add_argument("--brief", action="store_true", help="one line with nDCG@10 alone in place of the table")
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/search.md")
    options = parser.parse_args()
    need_extra("lucene", "the comparison")
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    documents = [document for _, document in read_documents(options.folder)]
    questions = load_questions(SplitConfig(benchmark="beir", path=str(options.folder)))
    qrels = read_qrels(options.folder / "qrels" / "test.tsv")
    with tempfile.TemporaryDirectory() as folder:
        programs = programs_of(options.folder, documents, questions, Path(folder))
        main_runs, other_runs = (
            {name: search(k1, b) for name, search in programs.items()} for k1, b in ((K1, B), (OTHER_K1, OTHER_B))
        )
    if options.fused is not None:
        main_runs |= fused_runs(open_config(str(options.fused)).index, questions)
    head = (
        f"`python -m benchmarks.beir {options.folder.name}`: {len(documents):,} documents, {len(questions)} queries, "
        f"{DEPTH:,} results; k1 = {K1}, b = {B}; bm25s {version('bm25s')}, Pyserini {version('pyserini')} ({taken()})"
    )
    table = rows(main_runs, other_runs, qrels)
    text = brief(head, table) if options.brief else "\n".join([f"{head}.", "", *HEADINGS, *table])
    print(text)
    if options.write:
        write_figures(RESULTS / "search.md", f"benchmarks.beir {options.folder.name}", text)


def brief(head: str, table: Sequence[str]) -> str:
    """Return one line for the table: nDCG@10 of each row."""
    cells = [[cell.strip() for cell in row.split("|")] for row in table]
    return f"{head}; nDCG@10: {'; '.join(f'{row[1]} {row[4]}' for row in cells)}."


def rows(main_runs: Runs, other_runs: Runs, qrels: Qrels) -> list[str]:
    """Return the table's lines: a run in all measures and its difference from ours, and with other parameters."""
    results = measure_runs(main_runs, qrels, parse_measures(MEASURES))
    precisions, others = (measure_runs(runs, qrels, parse_measures("AP")) for runs in (main_runs, other_runs))
    with_others = {one.run: format_number(one.estimate.mean, 4) for one in others}
    lines = []
    for one in precisions:
        cells = [format_number(result.estimate.mean, 4) for result in results if result.run == one.run]
        gain = ""
        if one.difference is not None and one.p is not None:
            gain = f"{format_number(one.difference.mean, 4, sign=True)} {format_interval(one.difference, 4)}"
            gain = f"{gain}, p {format_p(one.p)}"
        lines.append(f"| {' | '.join([one.run, *cells, gain, with_others.get(one.run, '')])} |")
    return lines


def fused_runs(config: IndexConfig, questions: Sequence[Question]) -> Runs:
    """Return the runs of a fused index: of BM25 over its chunks, of its dense part, of both, and of BM25 reranked."""
    index, names = open_index(config), {part.kind: name for name, part in config.parts.items()}
    if not isinstance(index, FusedIndex) or not {"bm25", "dense"} <= names.keys():
        raise UserError("--fused: the config's index is no fused one with parts of the kinds bm25 and dense")
    words, dense = (index.parts[names[kind]] for kind in ("bm25", "dense"))
    if not isinstance(dense, Index):
        raise UserError("--fused: the dense part is not on this machine")
    ways: dict[str, Retriever] = {
        "ours: best chunk": words,
        "dense": dense,
        "BM25 and dense, fused": index,
        f"BM25, the first {RERANKED} chunks reranked": RerankedIndex(
            words, RerankConfig(model="cosines", depth=RERANKED), by_cosine(dense)
        ),
    }
    asked = [question.text for question in questions]
    return {
        name: {
            question.id: [document for _, document in hits]
            for question, hits in zip(questions, search_documents(way, asked, DEPTH), strict=True)
        }
        for name, way in ways.items()
    }


def by_cosine(dense: Index) -> Score:
    """Return a reranker that scores texts of an index's chunks by their vectors in it."""
    passages = (dense.store.passage(chunk, 0.0) for chunk in range(len(dense.store)))
    chunks = {with_title(passage.title, passage.text): chunk for chunk, passage in enumerate(passages)}

    def score(asked: Sequence[Asked]) -> list[list[float]]:
        rankings = dense.ranker.rank([query for query, _ in asked], len(dense.store))
        scores = (dict(zip(one.chunks.tolist(), one.scores.tolist(), strict=True)) for one in rankings)
        return [[own[chunks[text]] for text in texts] for own, (_, texts) in zip(scores, asked, strict=True)]

    return score


def programs_of(
    data: Path, documents: Sequence[Document], questions: Sequence[Question], folder: Path
) -> dict[str, Program]:
    """Return what searches, by program and words."""
    texts = [with_title(document.title, document.text) for document in documents]
    asked = [question.text for question in questions]
    snowball, porter, whole = Analyzer("english", STOP_WORDS), Analyzer("porter", STOP_WORDS), Analyzer("english")

    def run_of(rankings: Sequence[Sequence[tuple[int, float]]]) -> TrecRun:
        found = (sorted(((score, documents[i].id) for i, score in hits), reverse=True) for hits in rankings)
        return {q.id: [name for _, name in hits] for q, hits in zip(questions, found, strict=True)}

    def ours(stop_words: Any) -> Program:
        config = IndexConfig(path=str(folder / "ours"), documents=(str(data),), chunk_tokens=100_000)
        build_index(config, word_tokenizer(), "words")

        def search(k1: float, b: float) -> TrecRun:
            index = open_folder(config.path, config.model_copy(update={"k1": k1, "b": b, "stop_words": stop_words}))
            found = search_documents(index, asked, DEPTH)
            return {q.id: [name for _, name in hits] for q, hits in zip(questions, found, strict=True)}

        return search

    def with_bm25s(corpus: Tokens, queries: Tokens) -> Program:
        def search(k1: float, b: float) -> TrecRun:
            index = bm25s.BM25(method="lucene", k1=k1, b=b)
            index.index(corpus, show_progress=False)
            known = [[word for word in query if word in index.vocab_dict] for query in queries]
            chunks, scores = index.retrieve(known, k=min(DEPTH, len(corpus)), show_progress=False)
            pairs = (zip(c.tolist(), s.tolist(), strict=True) for c, s in zip(chunks, scores, strict=True))
            return run_of([[(at, score) for at, score in hits if score > 0] for hits in pairs])

        return search

    def own_tokens(some: Sequence[str]) -> Tokens:
        stemmer = Stemmer.Stemmer("english")
        return list(bm25s.tokenize(list(some), stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False))

    kept, asked_words = [whole.terms(text) for text in texts], [snowball.query_terms(text) for text in asked]
    without = [snowball.query_terms(text) for text in texts]
    english = java._lucene().analysis.en.EnglishAnalyzer()
    plain = java._java_analyzer()
    return {
        OURS: ours("english"),
        "ours: no stop words": ours("none"),
        "ours: `long` stop words": ours("long"),
        "bm25s: ours": with_bm25s(kept, asked_words),
        "Lucene: ours": with_lucene(plain, kept, asked_words, run_of),
        "bm25s: ours, documents without stop words too": with_bm25s(without, asked_words),
        "bm25s: these, Porter's stems": with_bm25s(
            [porter.query_terms(text) for text in texts], [porter.query_terms(text) for text in asked]
        ),
        "Lucene: `EnglishAnalyzer`, as Pyserini": with_lucene(
            english, [[text] for text in texts], [[text] for text in asked], run_of
        ),
        "bm25s: its own": with_bm25s(own_tokens(texts), own_tokens(asked)),
    }


def with_lucene(
    analyzer: Any, corpus: Tokens, queries: Tokens, run_of: Callable[[Sequence[Sequence[tuple[int, float]]]], TrecRun]
) -> Program:
    """Return what searches with Lucene's BM25, of words that its analyzer splits out of texts."""
    lucene = java._lucene()
    directory = lucene.store.ByteBuffersDirectory()
    config = lucene.index.IndexWriterConfig(analyzer)
    config.setMergePolicy(lucene.index.LogByteSizeMergePolicy())  # documents keep their order
    writer = lucene.index.IndexWriter(directory, config)
    for words in corpus:
        document = lucene.document.Document()
        document.add(lucene.document.TextField(java.FIELD, " ".join(words), lucene.document.Field.Store.NO))
        writer.addDocument(document)
    writer.close()
    searcher = lucene.search.IndexSearcher(lucene.index.DirectoryReader.open(directory))
    builder = lucene.util.QueryBuilder(analyzer)

    def search(k1: float, b: float) -> TrecRun:
        searcher.setSimilarity(lucene.search.similarities.BM25Similarity(k1, b))
        parsed = (builder.createBooleanQuery(java.FIELD, " ".join(words)) for words in queries)
        found = (searcher.search(query, DEPTH).scoreDocs if query is not None else [] for query in parsed)
        return run_of([[(int(hit.doc), float(hit.score)) for hit in hits] for hits in found])

    return search


if __name__ == "__main__":
    run_command(main)
