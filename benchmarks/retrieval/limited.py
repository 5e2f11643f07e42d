"""Search an index of learned vectors with less memory than it needs: each query cold, then again.

    python -m benchmarks.retrieval.limited                     2 million documents, memory for half of the index
    python -m benchmarks.retrieval.limited --share 0.25        for a quarter of it

A process of its own searches, in a control group that limits the index's pages and the buffers of a search together;
making one needs root on Linux. The index's pages are dropped before, so that the first pass reads from the disk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]

from benchmarks.retrieval.corpus import Query, bm25_rows, columns_of, learned_rows, queries_for
from benchmarks.retrieval.engines import Ours
from benchmarks.retrieval.timing import compile_kernels, log, machine
from commands.arguments import run_command
from ratchet.errors import UserError
from ratchet.processor import memory_limits
from ratchet.tables import new_table, print_table

VOCABULARY = 128_000
SEED = 1
TERMS = 30
K = 10
PASSES = 3


def main() -> None:
    """Build the index, and search it with all memory and with a part."""
    parser = argparse.ArgumentParser(description="Search with less memory than the index needs.")
    parser.add_argument("--documents", type=int, default=2_000_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument(
        "--share", type=float, default=0.5, help="of the index's bytes that fit in memory (default: 0.5)"
    )
    options = parser.parse_args()
    print(machine())
    log("drawing the corpus")
    rows = learned_rows(bm25_rows(options.documents, VOCABULARY, SEED), SEED)
    queries = queries_for(columns_of(rows), options.queries, TERMS, True, SEED)
    with tempfile.TemporaryDirectory(prefix="limited-") as name:
        folder = Path(name)
        ours = Ours()
        log("building")
        ours.build(ours.prepare(rows), folder)
        size = ours.size(folder)
        table = new_table(
            f"{rows.documents:,} documents, {rows.postings:,} postings, {size / 1e9:.2f} GB; {len(queries)} queries",
            ("memory for the index", "pass"),
            ("p50 ms", "p99 ms", "MB read a query"),
        )
        del rows
        for share in (None, options.share):
            label = "all" if share is None else f"{share * size / 1e9:.2f} GB"
            log(f"searching with memory for {label}")
            with get_context("spawn").Pool(1) as pool:
                passes = pool.apply(_search, (folder, queries, None if share is None else int(share * size)))
            for number, (times, read) in enumerate(passes):
                row = (np.quantile(times, 0.5), np.quantile(times, 0.99), read / len(queries) / 1e6)
                table.add_row(label, "cold" if number == 0 else f"warm {number}", *[f"{figure:.2f}" for figure in row])
    print_table(table)


def _search(folder: Path, queries: list[Query], room: int | None) -> list[tuple[list[float], int]]:
    """Milliseconds of each query, and bytes read from the disk, by pass; `room`: memory that may be used."""
    ours = Ours()
    compile_kernels([ours], "learned", K)
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if room is not None:
        _limit_memory(room)  # what was allocated before counts for the group before
    ours.open(folder)
    passes = []
    for _ in range(PASSES):
        times, before = [], psutil.Process().io_counters().read_bytes
        for query in queries:
            started = time.perf_counter()
            ours.search([query], K, 1)
            times.append(1e3 * (time.perf_counter() - started))
        passes.append((times, psutil.Process().io_counters().read_bytes - before))
    return passes


def _limit_memory(limit: int) -> None:
    """Move this process into a new control group, of version 1 or 2, that may hold `limit` bytes."""
    files = memory_limits()
    if not files:
        raise UserError("this process's memory cannot be limited: Linux has no control group for it")
    group = files[0].parent / f"ratchet-{os.getpid()}"
    try:
        group.mkdir()
        (group / files[0].name).write_text(str(limit))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise UserError(f"{group}: cannot limit this process's memory ({error}); run this as root on Linux") from None


if __name__ == "__main__":
    run_command(main)
