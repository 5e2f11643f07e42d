"""Measures the engines in turns, so that noise affects all alike, and names the machine; and what exact results are.

The oracle is brute force: every posting of a query added up in float64, in ascending term order, and everything ranked.
It shares no code with the engine.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.retrieval.corpus import Columns, Kind, Query, bm25_rows, columns_of, learned_rows, queries_for
from benchmarks.retrieval.engines import Engine
from ratchet.retrieval.index import Ranking

STARTED = time.monotonic()
THREADS = (1, 2)


@dataclass
class Timing:
    """The times of one engine, in seconds."""

    alone: dict[int, list[Sequence[float]]] = field(default_factory=lambda: {threads: [] for threads in THREADS})
    """By threads, [rounds][queries]: each query alone."""
    alone_cpu: list[Sequence[float]] = field(default_factory=list)
    """[rounds][queries]: CPU time of each query alone on one thread, without the time that other programs took."""
    batch: dict[int, list[float]] = field(default_factory=lambda: {threads: [] for threads in THREADS})
    """By threads, [rounds]: all queries at once."""
    cpu: list[float] = field(default_factory=list)
    """[rounds]: CPU time of the batch on the most threads."""

    def figures(self, queries: int) -> dict[str, float]:
        """By heading of the table: quantiles over queries of each query's median round, and rates of the median."""
        single, split = (1e3 * np.median(self.alone[threads], axis=0) for threads in THREADS)
        return {
            "p50 ms": float(np.median(single)),
            "p99 ms": float(np.quantile(single, 0.99)),
            "CPU p99": float(1e3 * np.quantile(np.median(self.alone_cpu, axis=0), 0.99)),
            "2 threads": float(np.median(split)),
            **{f"q/s, {threads} t": queries / float(np.median(self.batch[threads])) for threads in THREADS},
            "q/CPU s": queries / max(float(np.median(self.cpu)), 1e-9),
        }


def measure(engines: Sequence[Engine], queries: Sequence[Query], k: int, rounds: int, title: str) -> dict[str, Timing]:
    """Every engine once a round, in another order each time; the first call of each is not counted."""
    timings = {engine.name: Timing() for engine in engines}
    for engine in engines:
        for threads in THREADS:
            engine.search(queries[:4], k, threads)
    for number in range(rounds):
        for i in range(len(engines)):
            engine = engines[(i + number) % len(engines)]
            log(f"{title}round {number + 1} of {rounds}: {engine.name}")
            timing = timings[engine.name]
            time.sleep(0.02)  # threads of the engine before may still be waiting in a loop
            for threads in THREADS:
                walls, cpus = zip(*(_seconds(engine, [query], k, threads) for query in queries), strict=True)
                timing.alone[threads].append(walls)
                if threads == 1:
                    timing.alone_cpu.append(cpus)
            for threads in THREADS:
                cpu = time.process_time()
                timing.batch[threads].append(_seconds(engine, queries, k, threads)[0])
                used = time.process_time() - cpu
            timing.cpu.append(used)
    return timings


def _seconds(engine: Engine, queries: Sequence[Query], k: int, threads: int) -> tuple[float, float]:
    """Seconds of wall time, and CPU time of this thread."""
    started, cpu = time.perf_counter(), time.thread_time()
    engine.search(queries, k, threads)
    return time.perf_counter() - started, time.thread_time() - cpu


def compile_kernels(engines: Sequence[Engine], kind: Kind, k: int) -> None:
    """Run everything once on a small corpus, so that no compilation is timed."""
    rows = bm25_rows(100, 1000, 0)
    rows = learned_rows(rows, 0) if kind == "learned" else rows
    queries = queries_for(columns_of(rows), 4, 5, kind == "learned", 0)
    for engine in engines:
        log(f"compiling: {engine.name}")
        with tempfile.TemporaryDirectory(prefix="retrieval-") as name:
            engine.build(engine.prepare(rows), Path(name))
            engine.open(Path(name))
            for threads in THREADS:
                engine.search(queries, k, threads)


def machine() -> str:
    """The processor, its cores and what else it does."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor()
    return f"{model}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.2f}"


def log(text: str) -> None:
    """Print a line of progress, with the seconds since the start, to stderr."""
    print(f"[{time.monotonic() - STARTED:6.1f}s] {text}", file=sys.stderr, flush=True)


# How far a float32 engine's scores may be off, relative.
FLOAT32 = 1e-5
FLOAT64 = 1e-12


class Oracle:
    """Scores queries against every document, and judges the rankings of engines by these scores."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._idf = columns.idf()
        self._weights = columns.weights(np.float64, with_idf=False)

    def scores(self, query: Query) -> np.ndarray:
        """float64 [documents]."""
        scores = np.zeros(self._columns.documents)
        factors = query.weights.astype(np.float64) * self._idf[query.terms]
        for term, factor in zip(query.terms.tolist(), factors, strict=True):
            postings = slice(*self._columns.offsets[term : term + 2])
            scores[self._columns.chunks[postings]] += factor * self._weights[postings]  # a list has a document once
        return scores

    def judge(self, found: Sequence[Ranking], queries: Sequence[Query], k: int) -> str:
        """Say how exact an engine's rankings are, the worst of all queries.

        bits       the same documents in the same order, the same scores to the last bit of a float64
        float64    the same documents, scores within 1e-12
        float32    at every rank a document whose true score is that rank's true score, within 1e-5
        0.87 ids   neither: mean share of the true top k that was found
        """
        verdicts = [_verdict(ranking, self.scores(query), k) for ranking, query in zip(found, queries, strict=True)]
        overlap = float(np.mean([share for _, share in verdicts]))
        worst = max(level for level, _ in verdicts)
        return ("bits", "float64", "float32", f"{overlap:.2f} ids")[worst]


def top(scores: np.ndarray, k: int) -> Ranking:
    """The k best scores above 0; equal ones by document number."""
    positive = np.flatnonzero(scores > 0)
    if len(positive) > k:
        edge = np.partition(scores[positive], len(positive) - k)[len(positive) - k]
        positive = positive[scores[positive] >= edge]
    order = np.lexsort((positive, -scores[positive]))[:k]
    return Ranking(scores[positive[order]], positive[order])


def _verdict(found: Ranking, scores: np.ndarray, k: int) -> tuple[int, float]:
    truth = top(scores, k)
    share = len(np.intersect1d(found.chunks, truth.chunks)) / max(len(truth), 1)
    if len(found) != len(truth):
        return 3, share
    if np.array_equal(found.chunks, truth.chunks):
        if np.array_equal(found.scores, truth.scores):
            return 0, share
        if np.allclose(found.scores, truth.scores, rtol=FLOAT64, atol=0):
            return 1, share
    # In float32 close neighbours may change places; nothing else may.
    placed = np.allclose(scores[found.chunks], truth.scores, rtol=FLOAT32, atol=0)
    scored = np.allclose(found.scores, truth.scores, rtol=FLOAT32, atol=0)
    return (2 if placed and scored and len(set(found.chunks.tolist())) == len(found) else 3), share
