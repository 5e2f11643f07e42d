"""Measures the machine, its memory, and the engines in turns, so that noise affects all alike."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit

from benchmarks.retrieval.baselines import Engine
from benchmarks.retrieval.corpus import Query

STARTED = time.monotonic()


@dataclass
class Timing:
    """The times of one engine."""

    single: list[list[float]] = field(default_factory=list)
    """[rounds][queries], seconds; each query alone on one thread."""
    split: list[list[float]] = field(default_factory=list)
    """The same on two threads for one query; empty where `measure` was called without `split`."""
    batch: dict[int, list[float]] = field(default_factory=dict)
    """Threads to [rounds], seconds for the whole batch."""
    cpu: dict[int, list[float]] = field(default_factory=dict)
    """The same in CPU seconds of the whole process."""

    def milliseconds(self, quantile: float, split: bool = False) -> float:
        """Quantile over queries of each query's median over rounds."""
        rounds = self.split if split else self.single
        return 1e3 * float(np.quantile(np.median(rounds, axis=0), quantile))

    def rate(self, threads: int, queries: int) -> float:
        """Queries a second: the median round."""
        return queries / float(np.median(self.batch[threads]))

    def cpu_rate(self, threads: int, queries: int) -> float:
        """Queries a CPU second."""
        return queries / max(float(np.median(self.cpu[threads])), 1e-9)


def measure(
    engines: Sequence[Engine],
    queries: Sequence[Query],
    k: int,
    rounds: int,
    threads: Sequence[int],
    split: bool = False,
    title: str = "",
) -> dict[str, Timing]:
    """Every engine once a round, in another order each time; the first call of each is not counted."""
    timings = {engine.name: Timing() for engine in engines}
    for engine in engines:
        for count in threads:
            engine.search(queries[:4], k, count)
    for number in range(rounds):
        for i in range(len(engines)):
            engine = engines[(i + number) % len(engines)]
            log(f"{title}round {number + 1} of {rounds}: {engine.name}")
            timing = timings[engine.name]
            time.sleep(0.02)  # threads of the engine before may still be waiting in a loop
            timing.single.append(_one_by_one(engine, queries, k, 1))
            if split:
                timing.split.append(_one_by_one(engine, queries, k, 2))
            for count in threads:
                spent, cpu = engine.timed(queries, k, count)
                timing.batch.setdefault(count, []).append(spent)
                timing.cpu.setdefault(count, []).append(cpu)
    return timings


def _one_by_one(engine: Engine, queries: Sequence[Query], k: int, threads: int) -> list[float]:
    return [engine.timed([query], k, threads)[0] for query in queries]


def bandwidth(megabytes: int = 512, repeats: int = 7) -> dict[str, float]:
    """GB/s of the memory: reading, and copying (bytes read and written), on 1 and 2 threads; the best of several."""
    source = np.ones(megabytes << 17, np.int64)
    target = np.empty_like(source)
    rates: dict[str, float] = {}
    with ThreadPoolExecutor(2) as pool:
        for threads in (1, 2):
            sources, targets = np.array_split(source, threads), np.array_split(target, threads)
            for name, work, traffic in (("read", _sum, 1), ("copy", _copy, 2)):
                best = float("inf")
                for _ in range(repeats + 1):  # the first one compiles and touches the pages
                    started = time.perf_counter()
                    list(pool.map(work, sources, targets))
                    best = min(best, time.perf_counter() - started)
                rates[f"{name} {threads}"] = traffic * source.nbytes / best / 1e9
    return rates


@njit(nogil=True, cache=True)
def _sum(source: Any, target: Any) -> int:
    total = 0
    for i in range(len(source)):
        total += source[i]
    return total


@njit(nogil=True, cache=True)
def _copy(source: Any, target: Any) -> int:
    for i in range(len(source)):
        target[i] = source[i]
    return 0


def machine() -> dict[str, Any]:
    """Describe the machine and the versions that the numbers were measured with."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor()
    caches = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            caches.append(f"L{level} {size}")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "caches": ", ".join(caches),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("numpy", "numba", "bm25s", "tantivy")},
        "numba_threading": numba.config.THREADING_LAYER,
        "command": " ".join(sys.argv),
    }


def log(text: str) -> None:
    """Print a line of progress, with the seconds since the start, to stderr."""
    print(f"[{time.monotonic() - STARTED:6.1f}s] {text}", file=sys.stderr, flush=True)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
