"""The engines in the form that the benchmark runs: published ones, our own, and Lucene as Ratchet runs it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import tantivy

from benchmarks.retrieval.corpus import K1, B, Columns, Kind, Query, Rows, columns_of
from ratchet.index_build.postings import Bm25Postings, SparsePostings
from ratchet.index_build.shard import BATCH, FolderWriter
from ratchet.retrieval.backends.lucene import LuceneRanker, build_lucene
from ratchet.retrieval.encoders.vectors import WEIGHTS
from ratchet.retrieval.index import Ranking, Shard, key_hash
from ratchet.retrieval.layout import ShardManifest, read_shard_manifest
from ratchet.retrieval.sparse.engine import Bm25
from ratchet.retrieval.sparse.engine import Engine as SparseEngine
from ratchet.retrieval.sparse.terms import Analyzer, SparseQuery


class Engine:
    """An engine to compare: built from a corpus into a folder, opened from there, searched on any number of threads."""

    name = ""
    input_form = "vectors"
    """The form that `prepare` returns; the build is timed from there."""
    kinds: tuple[Kind, ...] = ("bm25", "learned")
    """The vectors it can index."""
    weighted = True
    """True if it takes query weights; one that does not is judged with weights of 1."""

    def prepare(self, rows: Rows) -> Any:
        return rows

    def build(self, prepared: Any, folder: Path) -> None:
        raise NotImplementedError

    def open(self, folder: Path) -> None:
        raise NotImplementedError

    def search(self, queries: Sequence[Query], k: int, threads: int) -> list[Ranking]:
        raise NotImplementedError

    def size(self, folder: Path) -> int:
        """Bytes of the index on disk, without texts and document ids."""
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Bm25s(Engine):
    """bm25s with its numba backend. It takes no query weights and indexes no impacts: for learned vectors its score
    matrix is set to them directly, which it then searches as ever, every query weight being 1."""

    name = f"bm25s {version('bm25s')}, numba"
    input_form = "token numbers"
    weighted = False

    def prepare(self, rows: Rows) -> Any:
        if rows.kind == "learned":
            return columns_of(rows)
        numbers = list(range(rows.vocabulary))  # one object a number, not one a token
        return rows, [[numbers[t] for t in tokens] for tokens in _token_lists(rows)]

    def build(self, prepared: Any, folder: Path) -> None:
        if isinstance(prepared, Columns):
            index = bm25s.BM25(method="lucene", backend="numba")
            index.scores = {
                "data": prepared.weights(),
                "indices": prepared.chunks,
                "indptr": prepared.offsets,
                "num_docs": prepared.documents,
            }
            index.vocab_dict = {str(term): term for term in range(prepared.vocabulary)}
            index.nonoccurrence_array = None
        else:
            rows, tokens = prepared
            index = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numba")
            names = {str(term): term for term in range(rows.vocabulary)}
            index.index((tokens, names), create_empty_token=False, show_progress=False)
        index.save(str(folder), show_progress=False)

    def open(self, folder: Path) -> None:
        self._index = bm25s.BM25.load(str(folder), mmap=True, show_progress=False)
        self._index.backend = "numba"

    def search(self, queries: Sequence[Query], k: int, threads: int) -> list[Ranking]:
        chunks, scores = self._index.retrieve(
            [query.terms.tolist() for query in queries], k=k, n_threads=threads, show_progress=False
        )
        return [Ranking(s[s > 0].astype(np.float64), c[s > 0]) for c, s in zip(chunks, scores, strict=True)]


class Tantivy(Engine):
    """tantivy by its Python client. Lengths are rounded to a byte, so its BM25 is not quite BM25."""

    name = f"tantivy {version('tantivy')}"
    input_form = "text"
    kinds: tuple[Kind, ...] = ("bm25",)

    def prepare(self, rows: Rows) -> list[str]:
        return list(row_texts(rows))

    def _schema(self) -> Any:
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("text", tokenizer_name="words", index_option="freq")
        builder.add_unsigned_field("number", fast=True)
        return builder.build()

    def build(self, prepared: list[str], folder: Path) -> None:
        index = tantivy.Index(self._schema(), path=str(folder))
        self._register(index)
        writer = index.writer(heap_size=1 << 30, num_threads=1)
        for number, text in enumerate(prepared):
            document = tantivy.Document()
            document.add_text("text", text)
            document.add_unsigned("number", number)
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()

    @staticmethod
    def _register(index: Any) -> None:
        index.register_tokenizer("words", tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build())

    def open(self, folder: Path) -> None:
        index = tantivy.Index.open(str(folder))
        self._register(index)
        self._schema_of_index, self._searcher = index.schema, index.searcher()
        self._pool = ThreadPoolExecutor(2)

    def search(self, queries: Sequence[Query], k: int, threads: int) -> list[Ranking]:
        if threads == 1:
            return [self._rank(query, k) for query in queries]
        return list(self._pool.map(lambda query: self._rank(query, k), queries))  # 2 threads, as the benchmark asks for

    def _rank(self, query: Query, k: int) -> Ranking:
        schema, clauses = self._schema_of_index, []
        for term, weight in zip(query.terms.tolist(), query.weights.tolist(), strict=True):
            clause = tantivy.Query.term_query(schema, "text", f"t{term}", index_option="freq")
            boosted = clause if weight == 1 else tantivy.Query.boost_query(clause, weight)
            clauses.append((tantivy.Occur.Should, boosted))
        hits = self._searcher.search(tantivy.Query.boolean_query(clauses), limit=k, count=False).hits
        numbers = self._searcher.fast_field_values("number", [address for _, address in hits])
        # Its scores carry the factor k1 + 1 that Lucene dropped.
        return _ranked(np.array([score for score, _ in hits]) / (K1 + 1), np.array(numbers, np.int64))


def row_texts(rows: Rows) -> Iterator[str]:
    """Documents as text: the words t0, t1 and so on between blanks."""
    words = [f"t{term}" for term in range(rows.vocabulary)]
    for tokens in _token_lists(rows):
        yield " ".join([words[t] for t in tokens])


def _token_lists(rows: Rows) -> Iterator[list[int]]:
    for first, last in zip(rows.offsets[:-1].tolist(), rows.offsets[1:].tolist(), strict=True):
        yield np.repeat(rows.terms[first:last], rows.values[first:last]).tolist()


def _ranked(scores: np.ndarray, chunks: np.ndarray) -> Ranking:
    order = np.lexsort((chunks, -scores))
    return Ranking(scores[order].astype(np.float64), chunks[order].astype(np.int64))


MAX_THREADS = 8
# Rows of learned vectors that are handed over at once, as a builder hands over an encoder's batches.
ROWS = 4096


class Ours(Engine):
    """One shard of ours: its posting file and what goes with it, and one empty document that stands for the texts."""

    name = "ours"
    input_form = "text / vectors"

    def prepare(self, rows: Rows) -> tuple[Rows, list[str]]:
        return rows, list(row_texts(rows)) if rows.kind == "bm25" else []

    def build(self, prepared: tuple[Rows, list[str]], folder: Path) -> None:
        rows, texts = prepared
        files = FolderWriter(folder)
        with tempfile.TemporaryDirectory(dir=folder) as spill:
            if rows.kind == "bm25":
                words = Bm25Postings(Analyzer(None), Path(spill), K1, B)
                remaining = iter(texts)
                while batch := list(islice(remaining, BATCH)):
                    words.add(batch)
                counts = words.write(files)
            else:
                vectors = SparsePostings(Path(spill), rows.vocabulary, WEIGHTS)
                for first in range(0, rows.documents, ROWS):
                    offsets = rows.offsets[first : first + ROWS + 1]
                    span = slice(offsets[0], offsets[-1])
                    vectors.add(offsets - offsets[0], rows.terms[span], rows.values[span])
                counts = vectors.write(files)
        files.strings("document_ids").extend(["corpus"])
        files.strings("titles").extend([""])
        files.array("texts.utf8", "|u1")
        files.array("chunk_spans", "<i8").append(np.zeros(2 * rows.documents, np.int64))
        files.array("document_chunks", "<i8").append([0, rows.documents])
        files.array("document_hashes", "<u8").append(np.array([key_hash("corpus")], np.uint64))
        files.array("document_order", "<u4").append([0])
        manifest = ShardManifest(
            settings=str(rows.vocabulary) if rows.kind == "bm25" else "",
            source="synthetic",
            source_sha256="",
            first=0,
            documents=1,
            chunks=rows.documents,
            files=files.finish(),
            **counts,
        )
        manifest.write(folder)

    def open(self, folder: Path) -> None:
        manifest = read_shard_manifest(folder)
        bm25, self._hashes = None, None
        if manifest.settings:
            bm25, self._hashes = Bm25(K1, B), term_hashes(int(manifest.settings))
        self.shard = Shard(folder, manifest)
        self._engine = SparseEngine([self.shard], bm25, MAX_THREADS)

    def search(self, queries: Sequence[Query], k: int, threads: int) -> list[Ranking]:
        hashes = self._hashes
        asked = [SparseQuery(q.terms if hashes is None else hashes[q.terms], q.weights) for q in queries]
        return self._engine.search(asked, k, threads=threads)

    def size(self, folder: Path) -> int:
        texts = ("document", "titles", "texts", "chunk_spans")  # of the one empty document
        return sum(path.stat().st_size for path in folder.iterdir() if not path.name.startswith(texts))


@cache
def term_hashes(vocabulary: int) -> np.ndarray:
    """uint64 [vocabulary]: the hashes by which our BM25 index knows the words t0, t1 and so on."""
    return np.array([key_hash(f"t{term}") for term in range(vocabulary)], np.uint64)


class Lucene(Engine):
    """Lucene by retrieval/backends/lucene.py: BM25 with lengths rounded to a byte, over words split as ours."""

    name = "Lucene"
    input_form = "text"
    kinds: tuple[Kind, ...] = ("bm25",)

    def prepare(self, rows: Rows) -> list[str]:
        return list(row_texts(rows))

    def build(self, prepared: list[str], folder: Path) -> None:
        build_lucene(prepared, folder / "lucene", stemmer=None)

    def open(self, folder: Path) -> None:
        self._ranker = LuceneRanker(folder / "lucene", K1, B, stemmer=None)
        self._pool = ThreadPoolExecutor(2, "lucene")

    def search(self, queries: Sequence[Query], k: int, threads: int) -> list[Ranking]:
        texts = [" ".join([f"t{t}" for t in q.terms.tolist()]) for q in queries]
        if threads == 1 or len(texts) < 2:
            return self._ranker.rank(texts, k)
        halves = texts[: len(texts) // 2], texts[len(texts) // 2 :]
        return [ranking for half in self._pool.map(lambda half: self._ranker.rank(half, k), halves) for ranking in half]
