"""More rates of the capacity plan: what a posting costs a search, and how fast memory and disk are."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index_build.capacity.lists import random_list
from index_build.capacity.rates import Postings
from index_build.postings import Bm25Postings, SparsePostings
from index_build.writing import FolderWriter
from ratchet.config import IndexConfig
from ratchet.files import disk_error
from retrieval.encoders.vectors import WEIGHTS
from retrieval.sparse.analyzer import Words
from retrieval.sparse.engine import Bm25, Engine, SparseQuery
from retrieval.sparse.hashing import key_hash
from retrieval.sparse.postings import WINDOW
from retrieval.sparse.shards import Shard, ShardManifest

K = 10
WINDOWS = 2
# Postings of the lists that are searched; more queries than fill these are not timed.
POSTINGS = 1 << 22
DISK_BYTES = 1 << 27
# More than any cache holds.
MEMORY_BYTES = 1 << 28
BLOCK = 1 << 23
# BM25 sees lengths only beside their mean: chunks of a few words search like chunks of many.
MEAN_LENGTH = 24


@dataclass(frozen=True)
class Searching:
    fixed: float
    """Seconds of a query without any postings."""
    per_posting: float
    """Seconds a posting on one thread, picking the best chunks of every window included."""
    batch: float
    """Time of all queries in one call, as a share of their times one by one."""
    queries: int
    postings: int
    """Of these queries together."""
    memory: float
    """Bytes that one thread reads from memory in a second."""


@dataclass(frozen=True)
class Disk:
    read: float
    """Bytes in a second."""
    write: float
    how: str


def measure_search(config: IndexConfig, known: Postings, queries: Sequence[Sequence[Any]], folder: Path) -> Searching:
    """Search lists that are as dense as those of the sample's chunks, over whole windows of chunks.

    Each query is the terms it has; how common each is, `known` says.
    """
    chunks = WINDOWS * WINDOW
    sizes: dict[Any, int] = {}
    chosen: list[list[Any]] = []
    for query in queries:
        new = {term: known.of_term.get(term, 0) * chunks // known.chunks for term in query if term not in sizes}
        if chosen and sum(sizes.values()) + sum(new.values()) > POSTINGS:
            break
        sizes |= {term: size for term, size in new.items() if size > 0}
        chosen.append([term for term in query if term in sizes])
    number = {term: at for at, term in enumerate(sizes)}
    random = np.random.default_rng(0)
    lists = [random_list(random, size, chunks) for size in sizes.values()]
    shard = _shard(config, lists, chunks, folder)
    bm25 = Bm25(config.k1, config.b) if config.kind == "bm25" else None
    engine = Engine([shard], bm25, threads=1)
    asked = [_query(config, [number[term] for term in query], random) for query in chosen]
    fixed = _best_time(engine, [_query(config, [], random)], 20)
    single = sum(_best_time(engine, [query], 3) for query in asked)
    together = _best_time(engine, asked, 3)
    postings = sum(sizes[term] for query in chosen for term in query)
    per_posting = max(single - fixed * len(asked), 0.0) / max(postings, 1)
    return Searching(fixed, per_posting, min(together / single, 1.0), len(asked), postings, _memory())


def _memory() -> float:
    data = np.ones(MEMORY_BYTES // 8, np.int64)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        data.max()
        times.append(time.perf_counter() - began)
    return data.nbytes / min(times)


def _query(config: IndexConfig, terms: list[int], random: np.random.Generator) -> SparseQuery:
    if config.kind == "bm25":
        keys = np.array([key_hash(_word(term)) for term in terms], np.uint64)
        return SparseQuery(keys, np.ones(len(terms), np.float32))
    return SparseQuery(np.array(terms, np.uint64), random.uniform(0.2, 2, len(terms)).astype(np.float32))


def _best_time(engine: Engine, queries: list[SparseQuery], tries: int) -> float:
    engine.search(queries, K)
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        engine.search(queries, K)
        times.append(time.perf_counter() - began)
    return min(times)


def _word(term: int) -> str:
    return f"{term:x}q"


def _shard(config: IndexConfig, lists: list[np.ndarray], chunks: int, folder: Path) -> Shard:
    """A shard with these lists; list i is of the term _word(i), or of number i. It has no texts."""
    folder.mkdir()
    random = np.random.default_rng(1)
    counts = [len(one) for one in lists]
    terms = np.repeat(np.arange(len(lists)), counts)
    rows = np.concatenate(lists) if lists else np.empty(0, np.int64)
    order = np.argsort(rows, kind="stable")
    terms, rows = terms[order], rows[order]
    content: Bm25Postings | SparsePostings
    if config.kind == "bm25":
        content = Bm25Postings(Words(None, False), folder, config.k1, config.b)
        # A first chunk numbers the words; the last is what fills chunks up to their lengths.
        content.add([" ".join(_word(term) for term in range(len(lists) + 1))])
        lengths = np.bincount(rows, minlength=chunks)
        filling = np.maximum(random.lognormal(np.log(MEAN_LENGTH), 0.5, chunks).astype(np.int64) - lengths, 0)
        rows = np.concatenate([rows, np.repeat(np.arange(chunks), filling)])
        terms = np.concatenate([terms, np.full(len(rows) - len(terms), len(lists))])
        order = np.argsort(rows, kind="stable")
        content.add_counted(terms[order].astype(np.uint64), lengths + filling)
        chunks += 1
    else:
        content = SparsePostings(folder, max(len(lists), 1), WEIGHTS)
        logits = np.abs(random.standard_normal(len(rows), np.float32)) + np.float32(1e-3)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=chunks))])
        content.add(offsets, terms, (logits.view(np.uint32) >> 16).astype(np.uint16))
    files = FolderWriter(folder)
    try:
        for name in ("document_ids", "titles"):
            files.strings(name).extend(["all"])
        files.array("texts.utf8", "|u1").append(b" ")
        files.array("chunk_spans", "<i8").append(np.zeros(2 * chunks))
        files.array("document_chunks", "<i8").append([0, chunks])
        counted = content.write(files)
        entries = files.finish()
    finally:
        files.close()
        content.close()
    manifest = ShardManifest(
        settings="", source="", source_sha256="", first=0, documents=1, chunks=chunks, files=entries, **counted
    )
    return Shard(folder, manifest)


def measure_disk(folder: Path) -> Disk:
    """Write a file and read it again past the page cache."""
    path = folder / "disk"
    block = mmap.mmap(-1, BLOCK)  # aligned to a page, as O_DIRECT wants it
    block.write(np.random.default_rng(0).bytes(BLOCK))
    try:
        began = time.perf_counter()
        with path.open("wb") as file:
            for _ in range(DISK_BYTES // BLOCK):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        write = DISK_BYTES / (time.perf_counter() - began)
        how = "O_DIRECT"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except (OSError, AttributeError):
            how = "POSIX_FADV_DONTNEED"
            descriptor = os.open(path, os.O_RDONLY)
            with suppress(AttributeError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            began = time.perf_counter()
            at = 0
            while (got := os.preadv(descriptor, [block], at)) > 0:
                at += got
            read = at / (time.perf_counter() - began)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        path.unlink(missing_ok=True)
    how = f"{DISK_BYTES >> 20} MB read with {how}; what is below the file system may still have cached it"
    return Disk(read, write, how)
