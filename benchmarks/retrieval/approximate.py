"""Compare our exact search with Seismic's approximate one over learned sparse vectors, in one run.

    python -m benchmarks.retrieval.approximate                     2 million documents: 10 GB of memory, 6 GB of disk
    python -m benchmarks.retrieval.approximate --documents 20000   a small corpus, to see that it runs

Seismic (Bruch et al. 2024, arXiv 2404.18812) keeps the heaviest postings of a list, in clusters of similar documents
with a summary each, and skips clusters whose summary scores low. Its clusters need documents that are alike, so half of
the words of a document are of its topic (`bm25_rows`), and half the terms of a query are those of one document.
Seismic: pip install --no-deps pyseismic-lsr==0.5.4
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from benchmarks.retrieval.corpus import Query, Rows, bm25_rows, learned_rows, queries_of_documents, value_table
from benchmarks.retrieval.engines import Ours
from benchmarks.retrieval.timing import compile_kernels, log, machine
from commands.arguments import run_command
from ratchet.errors import UserError
from ratchet.tables import new_table, print_table

VOCABULARY = 30_522
"""That of BERT, in which SPLADE's vectors are."""
WORDS = 110.0
"""Mean words of a document, which has some 70 different ones."""
TOPIC = 100
"""Documents of one topic, on average."""
TERMS = 30
SEED = 1
SEARCHES = ((3, 0.9), (5, 0.9), (10, 0.9), (10, 0.7), (20, 0.7), (30, 0.5))
"""`query_cut`: how many of a query's heaviest terms have their lists searched. `heap_factor`: the smaller, the more
clusters are searched."""

Search = Callable[[Query, int], np.ndarray]


def main() -> None:
    """Run the comparison that the command line asks for."""
    parser = argparse.ArgumentParser(description="Our exact search beside Seismic's approximate one.")
    parser.add_argument("--documents", type=int, default=2_000_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-k", type=int, default=10)
    options = parser.parse_args()
    try:
        import seismic
    except ModuleNotFoundError:
        raise UserError("cannot import seismic; pip install --no-deps pyseismic-lsr==0.5.4") from None
    print(machine())
    log("drawing the corpus")
    rows = bm25_rows(options.documents, VOCABULARY, SEED, WORDS, topics=max(1, options.documents // TOPIC))
    rows = learned_rows(rows, SEED)
    queries = queries_of_documents(rows, options.queries, TERMS, SEED)
    table = new_table(
        f"{rows.documents:,} documents, {rows.postings:,} postings, {len(queries)} queries, one thread",
        ("engine",),
        ("build CPU s", "GB on disk", "GB in memory", f"recall@{options.k}", "p50 ms", "p99 ms", "CPU p50"),
    )

    def add(name: str, *figures: float) -> None:
        table.add_row(name, *[f"{figure:.3f}" for figure in figures])

    with tempfile.TemporaryDirectory(prefix="approximate-") as name:
        folder = Path(name)
        vectors = folder / "vectors"
        log("writing the vectors for Seismic")
        write_vectors(rows, vectors)
        ours, built = _ours(rows, folder)
        del rows
        gc.collect()
        before = _resident()
        ours.open(folder / "ours")
        truth, times = _timed(lambda query, k: ours.search([query], k, 1)[0].chunks, queries, options)
        add("ours, exact", built, ours.size(folder / "ours") / 1e9, (_resident() - before) / 1e9, 1, *times)

        before = _resident()
        log("Seismic: build")
        built = time.process_time()
        index = seismic.SeismicIndexRaw.build(str(vectors))
        built = time.process_time() - built
        index.save(str(folder / "seismic"))
        size = sum(path.stat().st_size for path in folder.glob("seismic*"))
        for cut, factor in SEARCHES:
            log(f"Seismic: query_cut {cut}, heap_factor {factor}")
            found, times = _timed(_searcher(index, cut, factor), queries, options)
            recall = np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, truth, strict=True)])
            memory = (_resident() - before) / 1e9
            add(f"Seismic, query_cut {cut}, heap_factor {factor}", built, size / 1e9, memory, float(recall), *times)
    print_table(table)


def write_vectors(rows: Rows, path: Path) -> None:
    """Write the documents as Seismic reads them: their number, and of each its length, terms and float32 weights."""
    weights = value_table()
    with path.open("wb") as file:
        file.write(np.uint32(rows.documents).tobytes())
        for first, after in pairwise(rows.offsets.tolist()):
            file.write(np.uint32(after - first).tobytes())
            file.write(rows.terms[first:after].tobytes())
            file.write(weights[rows.values[first:after]].tobytes())


def _ours(rows: Rows, folder: Path) -> tuple[Ours, float]:
    """Our engine, its index built in the folder `ours`, and the CPU seconds of that; kernels are compiled before."""
    ours = Ours()
    compile_kernels([ours], "learned", 10)
    log("ours: build")
    started = time.process_time()
    (folder / "ours").mkdir()
    ours.build(ours.prepare(rows), folder / "ours")
    return ours, time.process_time() - started


def _searcher(index: Any, cut: int, factor: float) -> Search:
    def search(query: Query, k: int) -> np.ndarray:
        hits = index.search(query.terms.astype(np.int32), query.weights, k, cut, factor, 0, True)
        return np.array([number for _, number in hits], np.int64)

    return search


def _timed(
    search: Search, queries: Sequence[Query], options: argparse.Namespace
) -> tuple[list[np.ndarray], list[float]]:
    """What each query finds, and milliseconds: the 0.5 and 0.99 quantiles over queries, and the 0.5 one of CPU time."""
    found = [search(query, options.k) for query in queries]
    clocks = time.perf_counter, time.thread_time
    times = np.empty((options.rounds, len(queries), len(clocks)))
    for number in range(options.rounds):
        for query, taken in zip(queries, times[number], strict=True):
            started = [clock() for clock in clocks]
            search(query, options.k)
            taken[:] = [1e3 * (clock() - start) for clock, start in zip(clocks, started, strict=True)]
    wall, cpu = np.median(times, axis=0).T
    return found, [*np.quantile(wall, (0.5, 0.99)).tolist(), float(np.median(cpu))]


def _resident() -> int:
    """Bytes of this process in memory, pages of mapped files included."""
    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    run_command(main)
