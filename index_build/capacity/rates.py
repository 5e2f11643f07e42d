"""Rates and sizes that the capacity plan is computed from, measured in this run by the code that really builds."""

from __future__ import annotations

import os
import resource
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from index_build.chunks import Chunker, Cuts, Spans
from index_build.content import NoContent
from index_build.documents import read_documents
from index_build.plan import Piece
from index_build.postings import Bm25Postings, SparsePostings
from index_build.shard import Content, build_shard
from index_build.writing import FolderWriter
from ratchet.config import IndexConfig
from ratchet.errors import UserError
from ratchet.files import write_jsonl
from ratchet.records import Record
from retrieval.encoders.vectors import WEIGHTS, SparseVectors
from retrieval.layout import Source
from retrieval.sparse.analyzer import Words
from retrieval.sparse.shards import ShardManifest

# Sorting and writing are timed on so many postings at least, or for so long.
POSTINGS = 1 << 21
BUILD_SECONDS = 3.0
ENCODE_SECONDS = 6.0
# Chunks whose vectors are made up where there is no encoder.
INVENTED = 512
LLAMA_3_VOCABULARY = 128_256


class Row(Record):
    id: str
    text: str
    title: str


@dataclass(frozen=True)
class Sample:
    path: Path
    """JSONL of the sampled documents, in a temporary folder."""
    documents: int
    text_bytes: int
    read: float
    """Documents read and checked in a second, from the sources themselves."""
    skipped: float | None
    """Documents a second that are passed over before a shard in the middle of a file; None: that costs nothing."""
    digested: float
    """Bytes of source files hashed in a second."""


@dataclass(frozen=True)
class Texts:
    """What building a real shard of the sample showed; times are of one process."""

    chunk_texts: list[str]
    document_chunks: np.ndarray
    seconds: dict[str, float]
    """chunking, texts, terms, finishing."""
    tokens_per_document: float
    manifest: ShardManifest


@dataclass(frozen=True)
class Postings:
    """Of so many chunks: what is known of their terms."""

    chunks: int
    frequencies: np.ndarray
    """int64: in how many of the chunks each term is; no zeros."""
    growth: float
    """Twice the chunks have 2^growth times the terms."""
    limit: int | None
    """Terms there can be; None: any number."""
    of_term: dict[Any, int]
    """The same frequencies by term."""

    @property
    def per_chunk(self) -> float:
        return float(self.frequencies.sum()) / max(self.chunks, 1)


@dataclass(frozen=True)
class Building:
    """Costs of one process, in seconds."""

    per_chunk: float
    """Words to term numbers, or taking in vectors."""
    per_new_term: float
    per_posting: float
    """Sorting, encoding and writing."""
    exceptions: float
    """Exceptions (12 bytes each) a posting."""
    memory_per_term: float
    """Bytes."""
    postings: int
    """On so many postings it was measured."""


@contextmanager
def one_core() -> Iterator[None]:
    """One process is meant to be one core: the tokenizer's own threads are turned off."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def take_sample(sources: Sequence[str], count: int, folder: Path) -> Sample:
    """The first documents of every source, as many of each."""
    if not sources:
        raise UserError("index.documents: name at least one source; the plan is computed from a sample of it")
    rows: list[Row] = []
    seconds = skip_seconds = 0.0
    skipped = 0
    share = -(-count // len(sources))
    for source in sources:
        path = Path(source)
        began = time.perf_counter()
        documents = [document for _, document in islice(read_documents(path), min(share, count - len(rows)))]
        seconds += time.perf_counter() - began
        rows += [Row(id=document.id, text=document.text, title=document.title) for document in documents]
        if documents and path.is_file() and path.suffix != ".parquet":
            began = time.perf_counter()
            next(read_documents(path, len(documents)), None)
            skip_seconds += time.perf_counter() - began
            skipped += len(documents)
    if not rows:
        raise UserError(f"{', '.join(sources)}: no documents; the plan is computed from a sample of them")
    path = folder / "sample.jsonl"
    write_jsonl(path, rows)
    data = path.read_bytes()
    # Small samples are hashed again and again: one pass is too short to time.
    began, passes = time.perf_counter(), 0
    while not passes or time.perf_counter() - began < 0.05:
        sha256(data)
        passes += 1
    digested = passes * len(data) / (time.perf_counter() - began)
    return Sample(
        path,
        len(rows),
        sum(len(row.text.encode()) for row in rows),
        len(rows) / seconds,
        skipped / skip_seconds if skipped else None,
        digested,
    )


class _Clock:
    """Stands between build_shard and what it calls, and adds up the time between the calls."""

    def __init__(self, chunker: Chunker) -> None:
        self._chunker = chunker
        self._inner: Content = NoContent()
        self.seconds = {"chunking": 0.0, "texts": 0.0, "terms": 0.0, "finishing": 0.0}
        self.texts: list[str] = []
        self._before = 0.0

    def around(self, inner: Content) -> Content:
        self._inner = inner
        return self

    def _timed(self, stage: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = call()
        self._before = time.perf_counter()
        self.seconds[stage] += self._before - began
        return result

    def cut_and_count(self, texts: Sequence[str], titles: Sequence[str]) -> tuple[list[Spans], Cuts]:
        found: tuple[list[Spans], Cuts] = self._timed("chunking", lambda: self._chunker.cut_and_count(texts, titles))
        return found

    def add(self, texts: Sequence[str]) -> None:
        self.seconds["texts"] += time.perf_counter() - self._before
        self.texts += texts
        self._timed("terms", lambda: self._inner.add(texts))

    def write(self, files: FolderWriter) -> dict[str, Any]:
        counts = self._inner.write(files)
        self._before = time.perf_counter()
        return counts

    def close(self) -> None:
        self.seconds["finishing"] = time.perf_counter() - self._before
        self._inner.close()


def build_sample(config: IndexConfig, tokenizer: Any, chunker: Chunker, sample: Sample, folder: Path) -> Texts:
    """A real shard of the sample, with the terms of BM25 or, where vectors come later, without."""

    def content(inside: Path) -> Content:
        if config.kind != "bm25":
            return NoContent()
        return Bm25Postings(Words(config.stemmer, config.stop_words), inside, config.k1, config.b)

    source = Source(path=str(sample.path), sha256="")
    # A first small one compiles the kernels and wakes the tokenizer up.
    for name, count in (("first", min(8, sample.documents)), ("shard", sample.documents)):
        clock = _Clock(chunker)

        def clocked(inside: Path, clock: _Clock = clock) -> Content:
            return clock.around(content(inside))

        piece = Piece(source=source, first=0, count=count)
        manifest = build_shard(folder / name, piece, "", clock, clocked, lambda done: None)  # type: ignore[arg-type]
    texts = [document.text for _, document in islice(read_documents(sample.path), 64)]
    tokens = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    spans = np.fromfile(folder / "shard" / "document_chunks", "<i8")
    return Texts(clock.texts, spans, clock.seconds, sum(map(len, tokens)) / len(texts), manifest)


def word_postings(config: IndexConfig, texts: Texts) -> Postings:
    """Terms of the sample's chunks, and how their number grows: every other document has half of the chunks."""
    words = Words(config.stemmer, config.stop_words)
    of_term: Counter[str] = Counter()
    halves: tuple[set[str], set[str]] = (set(), set())
    for document, (first, last) in enumerate(zip(texts.document_chunks, texts.document_chunks[1:], strict=False)):
        for text in texts.chunk_texts[first:last]:
            found = set(words.terms(text))
            of_term.update(found)
            halves[document % 2].update(found)
    growth = _growth(len(of_term), [len(half) for half in halves])
    return Postings(len(texts.chunk_texts), np.array(list(of_term.values()), np.int64), growth, None, dict(of_term))


def vector_postings(vectors: SparseVectors, vocabulary: int) -> Postings:
    counts = np.bincount(vectors.terms, minlength=vocabulary)
    rows = np.repeat(np.arange(len(vectors)) % 2, np.diff(vectors.offsets))
    halves = [len(np.unique(vectors.terms[rows == half])) for half in (0, 1)]
    there = np.flatnonzero(counts)
    of_term = dict(zip(there.tolist(), counts[there].tolist(), strict=True))
    return Postings(len(vectors), counts[there], _growth(len(there), halves), vocabulary, of_term)


def _growth(whole: int, halves: Sequence[int]) -> float:
    half = float(np.mean(halves))
    return float(np.clip(np.log2(whole / half), 0.0, 1.0)) if half and whole else 0.0


def invented_vectors(per_chunk: float, vocabulary: int) -> SparseVectors:
    """Vectors whose terms are as common as Zipf has it: the r-th is in min(1, c / r) of the chunks."""
    if not 0 < per_chunk < vocabulary:
        raise UserError(f"--postings-per-chunk must be between 0 and the vocabulary of {vocabulary:,}")
    ranks = np.arange(1, vocabulary + 1)
    low, high = 0.0, float(vocabulary)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, middle / ranks).sum() < per_chunk else (low, middle)
    shares = np.minimum(1, low / ranks).astype(np.float32)
    random = np.random.default_rng(0)
    rows = [np.flatnonzero(random.random(vocabulary, np.float32) < shares) for _ in range(INVENTED)]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    terms = np.concatenate(rows).astype(np.uint32)
    logits = np.abs(random.standard_normal(len(terms), np.float32)) + np.float32(1e-3)
    return SparseVectors(offsets, terms, (logits.view(np.uint32) >> 16).astype(np.uint16))


def encode_sample(encoder: Any, texts: Sequence[str]) -> tuple[SparseVectors, float]:
    """(vectors of as many chunks as there is time for, chunks a second), after a first batch that does not count."""
    parts: list[SparseVectors] = []
    encoder.encode_documents(texts[:2])
    began, done, size = time.perf_counter(), 0, 4
    while done < len(texts) and time.perf_counter() - began < ENCODE_SECONDS:
        parts.append(encoder.encode_documents(texts[done : done + size]))
        done += len(parts[-1])
        size *= 2
    seconds = time.perf_counter() - began
    ends = np.cumsum([0] + [int(part.offsets[-1]) for part in parts])
    offsets = np.concatenate([[0]] + [part.offsets[1:] + end for part, end in zip(parts, ends, strict=False)])
    terms, codes = (np.concatenate([getattr(part, name) for part in parts]) for name in ("terms", "codes"))
    return SparseVectors(offsets.astype(np.int64), terms, codes), done / seconds


def word_building(config: IndexConfig, texts: Texts, known: Postings, folder: Path) -> Building:
    """BM25: the sample over and over. In the first round every term is new, in the others none is."""
    words = Words(config.stemmer, config.stop_words)
    tracemalloc.start()
    probe = Bm25Postings(words, folder, config.k1, config.b)
    before = tracemalloc.get_traced_memory()[0]
    probe.add(texts.chunk_texts)
    # What the rows take is not of the vocabulary: 13 bytes each, held until they go to the disk.
    memory = tracemalloc.get_traced_memory()[0] - before - 13 * int(known.frequencies.sum())
    tracemalloc.stop()
    probe.close()
    content = Bm25Postings(words, folder, config.k1, config.b)
    try:
        first, later, rounds = _rounds(lambda: content.add(texts.chunk_texts), int(known.frequencies.sum()))
        counts, seconds, exceptions = _write(content.write, folder)
    finally:
        content.close()
    chunks, terms = len(texts.chunk_texts), max(len(known.frequencies), 1)
    per_round = later / max(rounds - 1, 1) if rounds > 1 else first
    postings = max(counts["postings"], 1)
    return Building(
        per_round / chunks,
        max(first - per_round, 0.0) / terms,
        seconds / postings,
        exceptions / postings,
        max(memory, 0) / terms,
        postings,
    )


def vector_building(vectors: SparseVectors, vocabulary: int, folder: Path) -> Building:
    first = SparsePostings(folder, vocabulary, WEIGHTS)  # compiles the kernels
    first.add(vectors.offsets[:2], vectors.terms[: vectors.offsets[1]], vectors.codes[: vectors.offsets[1]])
    _write(first.write, folder)
    first.close()
    content = SparsePostings(folder, vocabulary, WEIGHTS)
    try:
        once, later, rounds = _rounds(
            lambda: content.add(vectors.offsets, vectors.terms, vectors.codes), len(vectors.terms)
        )
        counts, seconds, exceptions = _write(content.write, folder)
    finally:
        content.close()
    postings = max(counts["postings"], 1)
    per_chunk = (once + later) / (rounds * len(vectors))
    return Building(per_chunk, 0.0, seconds / postings, exceptions / postings, 0.0, postings)


def _rounds(add: Callable[[], None], postings: int) -> tuple[float, float, int]:
    """(seconds of the first round, of the others, rounds)."""
    began = time.perf_counter()
    add()
    first, rounds = time.perf_counter() - began, 1
    began = time.perf_counter()
    while rounds * postings < POSTINGS and time.perf_counter() - began < BUILD_SECONDS:
        add()
        rounds += 1
    return first, time.perf_counter() - began, rounds


def _write(write: Callable[[FolderWriter], dict[str, Any]], folder: Path) -> tuple[dict[str, Any], float, int]:
    """(counts, seconds, exceptions) of writing a shard's postings, flushed to the disk."""
    inside = folder / f"volume-{time.monotonic_ns()}"
    inside.mkdir()
    files = FolderWriter(inside)
    try:
        began = time.perf_counter()
        counts = write(files)
        entries = files.finish()
        return counts, time.perf_counter() - began, entries["exception_values"].bytes // 4
    finally:
        files.close()


def memory_in_use() -> int:
    """Bytes of this process that are in memory now."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
