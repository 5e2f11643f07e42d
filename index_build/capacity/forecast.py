"""From measured rates to the hours, bytes and latencies of a large index. Nothing here is a rate: all come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

import numpy as np

from index_build.capacity.lists import ListBytes, spectrum
from index_build.capacity.rates import Building, Postings, Sample, Texts
from index_build.capacity.search_rates import Disk, Searching
from index_build.postings import BUFFER, SLICE
from retrieval.sparse.engine import SPLIT_WORDS

# Bytes of a posting on its way: a row in the spill files; a term and a code in the encoded parts; what sorting holds of
# it (index_build/postings.py); an exception's key and value.
SPILLED, ENCODED, SORTED, EXCEPTION = 12, 6, 30, 12
# A chunk's length as a Python integer in a list; a document's hash, its number and its place in the order.
HELD_CHUNK, HELD_DOCUMENT = 36, 24
# Regions are counted in words of 4 bytes with 32 bits (retrieval/sparse/shards.py).
MOST_POSTING_BYTES = 1 << 34


@dataclass(frozen=True)
class Goal:
    documents: int
    chunks: int | None
    shard_documents: int
    jobs: int
    workers: int
    threads: int
    memory: float


@dataclass(frozen=True)
class Measured:
    sample: Sample
    texts: Texts
    known: Postings
    building: Building
    searching: Searching
    disk: Disk
    encoded: float | None
    """Chunks encoded in a second; None where nothing was (BM25), or could be."""
    encodes: bool
    process: int
    """Bytes of this process with the tokenizer and the encoder loaded."""


@dataclass(frozen=True)
class Stage:
    name: str
    rate: str
    seconds: float | None
    """For the whole corpus, by one process or one device; None: not measured."""
    runs: Literal["once", "worker", "machine"]
    """once: by one process; worker: by all workers of all jobs; machine: once at a time on each job's machine."""

    def hours(self, jobs: int, workers: int) -> float | None:
        if self.seconds is None:
            return None
        return self.seconds / 3600 / {"once": 1, "worker": jobs * workers, "machine": jobs}[self.runs]


@dataclass(frozen=True)
class Build:
    documents: int
    chunks: int
    postings: float
    terms: float
    """Terms of one shard."""
    shards: int
    shard_chunks: float
    stages: list[Stage]
    wall_hours: float | None
    """With all jobs and workers, whole shards only."""
    one_file_hours: float | None
    """More hours of one process where all documents are in one file, whose beginning each shard passes over."""
    bytes: dict[str, float]
    temporary: dict[str, float]
    """Bytes on the disk for every worker while it builds a shard."""
    disk_hours: float
    """To write all that, temporary files included, on one machine."""
    worker_memory: float
    shard_posting_bytes: float


@dataclass(frozen=True)
class Serving:
    searched_bytes: float
    cache_bytes: float
    cached: float
    """Share of what is searched that stays in memory."""
    nodes: int
    """Machines of this memory that hold all of it together."""
    top: float | None
    """Postings a chunk that would fit into one; None: all do."""
    queries: int
    query_terms: float
    query_postings: float
    query_bytes: float
    one_thread: float
    """Seconds, all in memory; here and below the mean of the queries."""
    latency: float
    """On all threads of the node."""
    slowest: float
    cold: float
    """Nothing in memory."""
    expected: float
    """Every list with the same share in memory."""
    per_second: float
    """Queries in a second, one on each thread, all in memory."""
    batch_bytes: float
    """Bytes a query of a batch of all these queries touches, each list counted once."""
    batch_cold: float
    """Seconds a query of such a batch, nothing in memory."""
    check: float
    """Seconds to read the whole index once, as its first opening on another machine does."""


def plan_build(goal: Goal, m: Measured, bm25: bool) -> Build:
    per_document = len(m.texts.chunk_texts) / m.sample.documents
    chunks = goal.chunks or round(goal.documents * per_document)
    # Chunks stand for text: so many documents like the sample's have as much of it.
    alike = chunks / per_document
    shards = ceil(goal.documents / goal.shard_documents)
    shard_share = min(1.0, goal.shard_documents / goal.documents)
    shard_chunks = chunks * shard_share
    sizes, counts = spectrum(m.known.frequencies, m.known.chunks, round(shard_chunks), m.known.growth, m.known.limit)
    whole = 1 / shard_share
    terms, shard_postings = float(counts.sum()), float(sizes @ counts)
    postings = shard_postings * whole
    posting_bytes = float(ListBytes(round(shard_chunks), not bm25)(sizes) @ counts)
    files = m.texts.manifest.files
    text_files = [
        entry.bytes
        for name, entry in files.items()
        if name.split(".")[0] in ("document_ids", "titles", "texts", "chunk_spans", "document_chunks")
        or name in ("document_hashes", "document_order")
    ]
    sizes_of = {
        "texts and ids": sum(text_files) / m.sample.documents * alike,
        "postings": posting_bytes * whole,
        "exceptions": EXCEPTION * m.building.exceptions * postings,
    }
    if bm25:
        a_term = 4 + (files["term_hashes"].bytes + files["terms.offsets"].bytes + files["terms.utf8"].bytes) / max(
            m.texts.manifest.terms, 1
        )
        sizes_of |= {"terms": a_term * terms * whole, "lengths": 4.0 * chunks}
    else:
        sizes_of["terms"] = 4.0 * (m.known.limit or 0) * whole
    temporary = {"spilled postings": SPILLED * shard_postings}
    if m.encodes:
        temporary["encoded vectors"] = ENCODED * shard_postings + 8 * shard_chunks
    seconds = _seconds(goal, m, alike, chunks, postings, terms * whole if bm25 else 0.0, shards)
    stages = _stages(m, seconds, per_document)
    of_shard = {name: value * shard_share for name, value in seconds.items() if value is not None}
    mine = ceil(shards / goal.jobs)
    wall = None
    if seconds["encoding"] is not None:
        rounds = ceil(mine / goal.workers)
        by_workers = sum(of_shard[stage.name] for stage in stages if stage.runs == "worker")
        wall = (seconds["planning"] or 0) + rounds * by_workers + mine * of_shard["encoding"]
    one_file = None
    if m.sample.skipped:
        one_file = alike * (shards - 1) / 2 / m.sample.skipped / 3600
    written = sum(sizes_of.values()) + sum(temporary.values()) * whole
    held = m.process + min(SLICE, shard_postings) * SORTED + 3 * SPILLED * BUFFER
    held += terms * m.building.memory_per_term + HELD_CHUNK * shard_chunks * bm25
    held += HELD_DOCUMENT * goal.documents * shard_share
    return Build(
        goal.documents,
        chunks,
        postings,
        terms,
        shards,
        shard_chunks,
        stages,
        None if wall is None else wall / 3600,
        one_file,
        sizes_of,
        temporary,
        written / m.disk.write / 3600,
        held,
        posting_bytes,
    )


def _seconds(
    goal: Goal, m: Measured, alike: float, chunks: float, postings: float, new_terms: float, shards: int
) -> dict[str, float | None]:
    took = m.texts.seconds
    a_document = 1 / m.sample.documents
    return {
        "planning": alike / m.sample.read + alike * m.sample.text_bytes * a_document / m.sample.digested,
        "reading": alike / m.sample.read,
        "chunking": alike * took["chunking"] * a_document,
        "texts": alike * took["texts"] * a_document,
        "encoding": 0.0 if not m.encodes else None if m.encoded is None else chunks / m.encoded,
        "terms": chunks * m.building.per_chunk + new_terms * m.building.per_new_term,
        "postings": postings * m.building.per_posting,
        "finishing": shards * took["finishing"],
    }


def _stages(m: Measured, seconds: dict[str, float | None], per_document: float) -> list[Stage]:
    took, documents = m.texts.seconds, m.sample.documents
    rates = {
        "planning": f"{m.sample.read:,.0f} documents/s, {m.sample.digested / 1e6:,.0f} MB/s hashed",
        "reading": f"{m.sample.read:,.0f} documents/s",
        "chunking": f"{documents / max(took['chunking'], 1e-9):,.0f} documents/s",
        "texts": f"{documents / max(took['texts'], 1e-9):,.0f} documents/s",
        "encoding": "not measured" if m.encoded is None else f"{m.encoded:,.3g} chunks/s",
        "terms": f"{1 / max(m.building.per_chunk, 1e-12):,.0f} chunks/s",
        "postings": f"{1e9 * m.building.per_posting:,.0f} ns a posting",
        "finishing": f"{1000 * took['finishing']:,.0f} ms a shard",
    }
    if m.building.per_new_term:
        rates["terms"] += f", {1e6 * m.building.per_new_term:.1f} us a new term"
    runs: dict[str, Literal["once", "worker", "machine"]] = {"planning": "once", "encoding": "machine"}
    return [
        Stage(name, rates[name], value, runs.get(name, "worker"))
        for name, value in seconds.items()
        if name != "encoding" or m.encodes
    ]


def plan_serving(goal: Goal, m: Measured, build: Build, queries: Sequence[Sequence[object]], bm25: bool) -> Serving:
    """How one machine answers queries with these terms."""
    searched = sum(size for name, size in build.bytes.items() if name != "texts and ids")
    cache = max(goal.memory - m.process, 0.0)
    of_list = ListBytes(round(build.shard_chunks), not bm25)
    whole = build.chunks / build.shard_chunks

    def list_bytes(terms: Sequence[object]) -> float:
        shares = np.array([m.known.of_term.get(term, 0) / m.known.chunks for term in terms])
        shares = shares[shares > 0]
        return float(of_list(shares * build.shard_chunks).sum()) * whole if len(shares) else 0.0

    postings = np.array(
        [sum(m.known.of_term.get(term, 0) for term in query) / m.known.chunks * build.chunks for query in queries]
    )
    size = np.array([list_bytes(query) for query in queries])
    # The lists that were searched in small may have stayed in a cache; those of the whole come from memory.
    alone = m.searching.fixed + np.maximum(postings * m.searching.per_posting, size / m.searching.memory)
    split = np.clip(size // (4 * SPLIT_WORDS), 1, goal.threads)
    latency = m.searching.fixed + (alone - m.searching.fixed) / split
    cached = min(1.0, cache / searched) if searched else 1.0
    union = list_bytes(sorted({term for query in queries for term in query}, key=str)) / len(queries)
    fits = build.bytes["postings"] + build.bytes["exceptions"]
    room = cache - (searched - fits)
    per_second = goal.threads / float(alone.mean() * m.searching.batch)
    return Serving(
        searched,
        cache,
        cached,
        max(1, ceil(searched / cache)) if cache else 0,
        None if cached == 1 else max(room, 0.0) / (fits / max(build.postings, 1)) / build.chunks,
        len(queries),
        float(np.mean([len(query) for query in queries])),
        float(postings.mean()),
        float(size.mean()),
        float(alone.mean()),
        float(latency.mean()),
        float(latency.max()),
        float((latency + size / m.disk.read).mean()),
        float((latency + (1 - cached) * size / m.disk.read).mean()),
        per_second,
        union,
        union / m.disk.read + 1 / per_second,
        sum(build.bytes.values()) / m.disk.read,
    )
