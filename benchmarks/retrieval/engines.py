"""The engines of the retrieval package in the form that the benchmark runs: our own, and Lucene."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.retrieval.baselines import Engine, row_texts
from benchmarks.retrieval.corpus import K1, B, Kind, Query, Rows
from ratchet.index_build.postings import Bm25Postings, SparsePostings
from ratchet.index_build.shard import BATCH, FolderWriter
from ratchet.retrieval.backends.lucene import LuceneRanker, build_lucene
from ratchet.retrieval.encoders.vectors import WEIGHTS
from ratchet.retrieval.index import Ranking, Shard, key_hash
from ratchet.retrieval.layout import ShardManifest, read_shard_manifest
from ratchet.retrieval.sparse.engine import Bm25
from ratchet.retrieval.sparse.engine import Engine as SparseEngine
from ratchet.retrieval.sparse.terms import Analyzer, SparseQuery

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
    """Lucene by retrieval/backends/lucene.py: BM25 with lengths rounded to a byte.

    It cuts the text with its own analyzer, in Java: our words would cost its build more time than Lucene itself. The
    words t0, t1 and so on pass through that unchanged.
    """

    name = "Lucene"
    input_form = "text"
    kinds: tuple[Kind, ...] = ("bm25",)

    def prepare(self, rows: Rows) -> list[str]:
        return list(row_texts(rows))

    def build(self, prepared: list[str], folder: Path) -> None:
        build_lucene(prepared, folder / "lucene", analyzer="lucene")

    def open(self, folder: Path) -> None:
        self._ranker = LuceneRanker(folder / "lucene", K1, B, analyzer="lucene")
        self._pool = ThreadPoolExecutor(2, "lucene")

    def search(self, queries: Sequence[Query], k: int, threads: int) -> list[Ranking]:
        texts = [" ".join([f"t{t}" for t in q.terms.tolist()]) for q in queries]
        if threads == 1 or len(texts) < 2:
            return self._ranker.rank(texts, k)
        halves = texts[: len(texts) // 2], texts[len(texts) // 2 :]
        return [ranking for half in self._pool.map(lambda half: self._ranker.rank(half, k), halves) for ranking in half]
