"""Corpora of postings, searched twice: by the engine, over shards that are really written, and by brute force."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from ratchet.index_build.postings import Bm25Postings, SparsePostings
from ratchet.index_build.shard import FolderWriter
from ratchet.retrieval.encoders.vectors import WEIGHTS
from ratchet.retrieval.index import Ranking, Shard, key_hash
from ratchet.retrieval.layout import ShardManifest
from ratchet.retrieval.sparse.engine import Bm25, Engine
from ratchet.retrieval.sparse.terms import Analyzer, SparseQuery

Query = Sequence[tuple[int, float]]
"""(term, weight) pairs; a term may come twice, or not be in the corpus."""


@dataclass(frozen=True)
class Corpus:
    """For every term the chunks that have it, ascending, and beside them term frequencies or value numbers.

    With `bm25` given the values are frequencies; without, the bits of the bfloat16 that a learned weight is made of.
    """

    chunks: int
    lists: Mapping[int, tuple[np.ndarray, np.ndarray]]
    bm25: Bm25 | None = None
    built: Bm25 | None = None
    """What codes are made with, where it is not `bm25`."""

    @cached_property
    def lengths(self) -> np.ndarray:
        lengths = np.zeros(self.chunks, np.int64)
        for chunks, values in self.lists.values():
            lengths[chunks] += values
        return lengths

    @cached_property
    def weights(self) -> Mapping[int, np.ndarray]:
        """Of every term the float64 weights beside its chunks, BM25's without the idf."""
        if self.bm25 is None:
            return {term: WEIGHTS[values].astype(np.float64) for term, (_, values) in self.lists.items()}
        k1, b = self.bm25.k1, self.bm25.b
        norms = k1 * (1.0 - b + b * (self.lengths / (self.lengths.sum() / max(self.chunks, 1) or 1.0)))
        return {term: values / (values + norms[chunks]) for term, (chunks, values) in self.lists.items()}

    def part(self, first: int, last: int) -> "Corpus":
        """Chunks first .. last - 1 alone, renumbered."""
        lists = {}
        for term, (chunks, values) in self.lists.items():
            span = slice(*np.searchsorted(chunks, [first, last]))
            lists[term] = (chunks[span] - first, values[span])
        return Corpus(last - first, lists, self.bm25, self.built)

    def scores(self, query: Query) -> np.ndarray:
        """float64 per chunk: the sum of weight times weight over the query's terms, in ascending term order."""
        scores = np.zeros(self.chunks)
        merged: dict[int, float] = {}
        for term, weight in sorted(query):  # what comes twice is added up by size, in whatever order it was asked
            merged[term] = merged.get(term, 0.0) + float(np.float32(weight))
        for term in sorted(merged, key=(lambda term: term) if self.bm25 is None else _word_hash):
            if term not in self.lists:
                continue
            chunks, factor = self.lists[term][0], merged[term]
            if self.bm25 is not None:
                factor *= np.log1p((self.chunks - np.array([len(chunks)]) + 0.5) / (len(chunks) + 0.5))[0]
            scores[chunks] += factor * self.weights[term]
        return scores

    def ranking(self, query: Query, k: int) -> Ranking:
        """The k best scores above 0, equal ones by chunk."""
        scores = self.scores(query)
        found = np.flatnonzero(scores > 0)
        order = found[np.argsort(-scores[found], kind="stable")][:k]
        return Ranking(scores[order], order)

    def engine(self, folder: Path, cuts: Iterable[int] = (), threads: int | None = None) -> Engine:
        """An engine over this corpus, written to `folder` as shards that begin at 0 and at every cut."""
        bounds = [0, *sorted(cuts), self.chunks]
        shards = []
        for i, (first, last) in enumerate(pairwise(bounds)):
            path = folder / f"{i:05d}"
            path.mkdir(parents=True)
            shards.append(Shard(path, self.part(first, last).write(path), first, i))
        return Engine(shards, self.bm25, threads, built=self.built)

    def write(self, folder: Path) -> ShardManifest:
        """One shard, as a build writes it, but for the texts: they are those of one empty document."""
        files = FolderWriter(folder)
        with tempfile.TemporaryDirectory(dir=folder) as spill:
            counts = (self._vectors if self.bm25 is None else self._words)(Path(spill)).write(files)
        files.strings("document_ids").extend(["all"])
        files.strings("titles").extend([""])
        files.array("texts.utf8", "|u1")
        files.array("chunk_spans", "<i8").append(np.zeros(2 * self.chunks, np.int64))
        files.array("document_chunks", "<i8").append([0, self.chunks])
        manifest = ShardManifest(
            settings="", source="", source_sha256="", first=0, documents=1, chunks=self.chunks, files=files.finish(),
            **counts,
        )  # fmt: skip
        manifest.write(folder)
        return manifest

    def _words(self, spill: Path) -> Bm25Postings:
        assert self.bm25 is not None
        texts = [""] * self.chunks
        for term, (chunks, values) in self.lists.items():
            for chunk, value in zip(chunks.tolist(), values.tolist(), strict=True):
                texts[chunk] += f"{word(term)} " * value
        built = self.built or self.bm25
        postings = Bm25Postings(Analyzer(None), spill, built.k1, built.b)
        postings.add(texts)
        return postings

    def _vectors(self, spill: Path) -> SparsePostings:
        postings = SparsePostings(spill, max(self.lists, default=0) + 1, WEIGHTS)
        none = [np.empty(0, np.int64)]
        terms = np.concatenate([np.full(len(chunks), term) for term, (chunks, _) in self.lists.items()] or none)
        chunks = np.concatenate([chunks for chunks, _ in self.lists.values()] or none)
        values = np.concatenate([values for _, values in self.lists.values()] or none)
        order = np.lexsort((terms, chunks))
        offsets = np.searchsorted(chunks[order], np.arange(self.chunks + 1))
        postings.add(offsets, terms[order].astype(np.uint32), values[order].astype(np.uint16))
        return postings


def corpus(postings: Sequence[Mapping[int, int]], bm25: Bm25 | None = None) -> Corpus:
    """Of every chunk's {term: value}."""
    lists: dict[int, tuple[list[int], list[int]]] = {}
    for chunk, values in enumerate(postings):
        for term, value in values.items():
            of_term = lists.setdefault(term, ([], []))
            of_term[0].append(chunk)
            of_term[1].append(value)
    arrays = {term: (np.array(chunks), np.array(values)) for term, (chunks, values) in lists.items()}
    return Corpus(len(postings), arrays, bm25)


def word(term: int) -> str:
    return f"t{term}"


def _word_hash(term: int) -> int:
    return key_hash(word(term))


def asked(query: Query, bm25: Bm25 | None) -> SparseQuery:
    """The query as the engine takes it."""
    terms = [term if bm25 is None else _word_hash(term) for term, _ in query]
    return SparseQuery(np.array(terms, np.uint64), np.array([weight for _, weight in query], np.float32))


def assert_equal(found: Sequence[Ranking], expected: Sequence[Ranking]) -> None:
    """The same chunks in the same order, and the same scores to the last bit."""
    assert len(found) == len(expected)
    for ours, truth in zip(found, expected, strict=True):
        assert ours.chunks.tolist() == truth.chunks.tolist()
        assert ours.scores.tolist() == truth.scores.tolist()


def assert_exact(engine: Engine, corpus: Corpus, queries: Sequence[Query], k: int, **options: object) -> None:
    """What the engine finds is what brute force finds."""
    found = engine.search([asked(query, corpus.bm25) for query in queries], k, **options)  # type: ignore[arg-type]
    assert_equal(found, [corpus.ranking(query, k) for query in queries])
