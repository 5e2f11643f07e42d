"""Recall against time: our pruned search beside our exact one and Seismic, on the same learned vectors in one run.

    python -m benchmarks.retrieval.approximate                          200,000 synthetic documents
    python -m benchmarks.retrieval.approximate --vectors FOLDER         real ones: part-*.npz, queries.npz

The files of --vectors hold `offsets`, `terms` and `codes`, as retrieval/encoders/vectors.py writes them
(benchmarks/retrieval/grow.py makes as many as are wanted of a few encoded sentences). Each query is
searched alone on one thread; settings take turns within a round. Times are CPU times of that thread, so that other work
on the machine counts less. Recall is the share of the exact top k that was found. Seismic (Bruch et al. 2024):
pip install pyseismic-lsr; without it ours is compared with our exact search only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.retrieval.baselines import empty_folder, folder_bytes
from benchmarks.retrieval.corpus import Query, Rows, bm25_rows, columns_of, learned_rows, queries_for, value_table
from benchmarks.retrieval.engines import Ours
from benchmarks.retrieval.timing import log, machine
from commands.arguments import run_command
from index_build.forward import build_shard_rows
from retrieval.layout import read_rows_manifest
from retrieval.shards import Shard
from retrieval.sparse.engine import EXACT, Pruning, SparseQuery
from retrieval.sparse.forward import RowEngine
from retrieval.sparse.forward import Rows as ShardRows

try:
    from seismic import SeismicIndexRawLV  # type: ignore[import-untyped,import-not-found,unused-ignore]
except ModuleNotFoundError:
    SeismicIndexRawLV = None

DEPTHS = (10, 100)
PRUNINGS = [Pruning(mass, candidates) for mass in (0.7, 0.8, 0.9) for candidates in (2, 4, 8)]
VOCABULARY = 128_000
# Of Seismic's guide: 3,000 to 6,000 postings a list; the published configurations search 3 to 12 lists.
BUILDS = {
    1: {"n_postings": 3500, "centroid_fraction": 0.1, "summary_energy": 0.4, "max_fraction": 1.5},
    2: {"n_postings": 6000, "centroid_fraction": 0.2, "summary_energy": 0.5, "max_fraction": 6.0},
    # Fits half an hour of one core at a million chunks of 250 terms, of which it keeps an eighth to a ninth.
    3: {"n_postings": 2000, "centroid_fraction": 0.1, "summary_energy": 0.4, "max_fraction": 1.5},
}
CUTS = (
    *((4, 0.9), (8, 0.9), (8, 0.8), (12, 0.9), (12, 0.8), (12, 0.7)),
    *((20, 0.8), (20, 0.7), (30, 0.8), (30, 0.7), (30, 0.6), (30, 0.5)),
)


@dataclass
class Setting:
    """One point of a curve: an engine with its parameters."""

    engine: str
    label: str
    search: Callable[[Query, int], np.ndarray]
    """Chunk numbers of the best k for a query."""
    seconds: dict[int, list[list[float]]] = field(default_factory=dict)
    """By k: [rounds][queries]."""
    recall: dict[int, float] = field(default_factory=dict)


def main() -> None:
    """Run the comparison that the command line asks for."""
    parser = argparse.ArgumentParser(description="Recall against time of approximate search.")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--vectors", type=Path, metavar="FOLDER", help="encoded documents and queries")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="these engines, separated by commas: ours, rows, seismic 1 to 3 (default: all)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what is built there, and use what is there")
    parser.add_argument("--out", type=Path, help="write everything as JSON too")
    options = parser.parse_args()
    about = machine()
    for key, value in about.items():
        print(f"{key}: {value}")
    if options.vectors:
        rows, queries = read_vectors(options.vectors, options.documents, options.queries)
    else:
        rows = learned_rows(bm25_rows(options.documents, VOCABULARY, options.seed), options.seed)
        queries = queries_for(columns_of(rows), options.queries, 30, True, options.seed)
    print(
        f"{rows.documents:,} documents, {rows.postings:,} postings, {len(queries)} queries, "
        f"{np.mean([len(q.terms) for q in queries]):.1f} terms each"
    )
    with tempfile.TemporaryDirectory(prefix="approximate-") as name:
        folder = options.keep or Path(name)
        settings, built = [], []
        engines: list[Curve] = [OurCurve(), RowsCurve()]
        if SeismicIndexRawLV is not None:
            engines += [SeismicCurve(f"seismic {number}", parameters) for number, parameters in BUILDS.items()]
        else:
            print("skipped: Seismic; pip install pyseismic-lsr")
        for engine in engines:
            if options.only and engine.name not in options.only.split(","):
                continue
            built.append(_built(engine, rows, folder / engine.name))
            settings += engine.open(folder / engine.name)
        if not options.rounds:
            return
        _measure(settings, queries, options.rounds)
    for line in built:
        print("{engine}: {parameters}; built in {seconds:.1f} s ({cpu_seconds:.1f} of CPU)".format(**line), end="")
        print(f", {line['bytes'] / 1e6:.0f} MB")
    table = _table(settings)
    for depth in DEPTHS:
        print(f"\nk = {depth}: recall; mean and median ms of CPU a query; times the exact search's median")
        exact = table[0]["p50"][depth]
        for row in sorted(table, key=lambda row: (row["engine"], row["recall"][depth])):
            figures = (row["recall"][depth], row["ms"][depth], row["p50"][depth], row["p50"][depth] / exact)
            print(f"{row['engine']:<12} {row['label']:<28} " + "  ".join(f"{figure:.4f}" for figure in figures))
    if options.out:
        options.out.write_text(json.dumps({"machine": about, "built": built, "table": table}, indent=1))


def read_vectors(folder: Path, documents: int, count: int) -> tuple[Rows, list[Query]]:
    """At most so many encoded documents and queries of a folder."""
    offsets, terms, codes = [np.zeros(1, np.int64)], [], []
    for path in sorted(folder.glob("part-*.npz")):
        with np.load(path, allow_pickle=False) as part:
            offsets.append(part["offsets"][1:] + offsets[-1][-1])
            terms.append(part["terms"].astype(np.int32))
            codes.append(part["codes"])
    joined = np.concatenate(offsets)[: documents + 1]
    nnz = joined[-1]
    all_terms, all_codes = np.concatenate(terms)[:nnz], np.concatenate(codes)[:nnz]
    with np.load(folder / "queries.npz", allow_pickle=False) as part:
        spans = zip(part["offsets"][:count], part["offsets"][1:], strict=False)
        weights = value_table()[part["codes"]]
        queries = [Query(part["terms"][low:high].astype(np.int64), weights[low:high]) for low, high in spans]
    return Rows("learned", int(all_terms.max()) + 1, joined, all_terms, all_codes), queries


class Curve:
    """An engine that is built once and searched with several settings."""

    name: str
    parameters: str = ""

    def build(self, rows: Rows, folder: Path) -> Callable[[], None]:
        """Prepare the input; returns the build, which is timed."""
        raise NotImplementedError

    def open(self, folder: Path) -> list[Setting]:
        raise NotImplementedError

    def size(self, folder: Path) -> int:
        """Bytes on disk."""
        return folder_bytes(folder)


class OurCurve(Curve):
    """One shard of ours; the first setting is its exact search."""

    name = "ours"

    def build(self, rows: Rows, folder: Path) -> Callable[[], None]:
        engine = Ours()
        prepared = engine.prepare(rows)
        return lambda: engine.build(prepared, folder)

    def open(self, folder: Path) -> list[Setting]:
        engine = Ours()
        engine.open(folder)

        def search(pruning: Pruning) -> Callable[[Query, int], np.ndarray]:
            def run(query: Query, k: int) -> np.ndarray:
                engine.pruning = pruning
                return engine.search([query], k, 1)[0].chunks

            return run

        pruned = [Setting(self.name, f"mass {p.mass}, candidates {p.candidates}", search(p)) for p in PRUNINGS]
        return [Setting(self.name, "exact", search(EXACT)), *pruned]


class RowsCurve(Curve):
    """Our two phases with rows, which are made of the shard of `OurCurve` beside it."""

    name = "rows"

    def build(self, rows: Rows, folder: Path) -> Callable[[], None]:
        shard = self._shard(folder)
        return lambda: build_shard_rows(folder / "rows", shard)

    def open(self, folder: Path) -> list[Setting]:
        shard = self._shard(folder)
        manifest = read_rows_manifest(folder / "rows", shard.manifest.digest)
        assert manifest is not None
        engine = RowEngine([shard], [ShardRows(folder / "rows", manifest, shard)], 1)

        def search(pruning: Pruning) -> Callable[[Query, int], np.ndarray]:
            return lambda query, k: (
                engine.search([SparseQuery(query.terms, query.weights)], k, threads=1, pruning=pruning)[0].chunks
            )

        return [Setting(self.name, f"mass {p.mass}, candidates {p.candidates}", search(p)) for p in PRUNINGS]

    def _shard(self, folder: Path) -> Shard:
        engine = Ours()
        engine.open(folder.parent / OurCurve.name)
        return engine.shard


class SeismicCurve(Curve):
    """Seismic's class for large vocabularies, by term numbers: no strings are looked up in its searches."""

    def __init__(self, name: str, parameters: dict[str, Any]) -> None:
        self.name = name
        self._parameters = parameters
        self.parameters = ", ".join(f"{key} {value}" for key, value in parameters.items())

    def build(self, rows: Rows, folder: Path) -> Callable[[], None]:
        _write_seismic(rows, folder / "documents.bin")

        def build() -> None:
            index = SeismicIndexRawLV.build(str(folder / "documents.bin"), min_cluster_size=2, **self._parameters)
            index.save(str(folder / "index"))
            (folder / "documents.bin").unlink()

        return build

    def open(self, folder: Path) -> list[Setting]:
        index = SeismicIndexRawLV.load(str(folder / "index"))

        def search(cut: int, factor: float) -> Callable[[Query, int], np.ndarray]:
            def run(query: Query, k: int) -> np.ndarray:
                found = index.search(query.terms.astype(np.int32), query.weights, k, cut, factor, 0, True)
                return np.array([chunk for _, chunk in found], np.int64)

            return run

        return [Setting(self.name, f"cut {cut}, heap {factor}", search(cut, factor)) for cut, factor in CUTS]


def _built(engine: Curve, rows: Rows, folder: Path) -> dict[str, Any]:
    """Build an engine's index, unless the folder has it; returns seconds and bytes."""
    figures = folder / "built.json"
    if not figures.exists():
        log(f"{engine.name}: build")
        build = engine.build(rows, empty_folder(folder))
        started, cpu = time.perf_counter(), time.process_time()
        build()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        built = {"engine": engine.name, "parameters": engine.parameters, "seconds": seconds, "cpu_seconds": cpu}
        figures.write_text(json.dumps(built | {"bytes": engine.size(folder)}))
    return dict(json.loads(figures.read_text()))


def _write_seismic(rows: Rows, path: Path) -> None:
    """Seismic's own binary form: uint32 rows; then for every row uint32 length, uint32 terms, float32 weights."""
    weights = value_table()[rows.values]
    with path.open("wb") as file:
        file.write(np.uint32(rows.documents).tobytes())
        for low, high in zip(rows.offsets[:-1].tolist(), rows.offsets[1:].tolist(), strict=True):
            file.write(np.uint32(high - low).tobytes())
            file.write(rows.terms[low:high].astype("<u4").tobytes())
            file.write(weights[low:high].astype("<f4").tobytes())


def _measure(settings: Sequence[Setting], queries: Sequence[Query], rounds: int) -> None:
    exact = settings[0]
    for depth in DEPTHS:
        truth = [set(exact.search(query, depth).tolist()) for query in queries]
        for setting in settings:
            found = [setting.search(query, depth) for query in queries]
            shares = [
                len(best & set(chunks.tolist())) / max(len(best), 1) for best, chunks in zip(truth, found, strict=True)
            ]
            setting.recall[depth] = float(np.mean(shares))
        for number in range(rounds):
            log(f"k = {depth}: round {number + 1} of {rounds}")
            for i in range(len(settings)):
                setting = settings[(i + number) % len(settings)]
                spent = []
                for query in queries:
                    started = time.thread_time()
                    setting.search(query, depth)
                    spent.append(time.thread_time() - started)
                setting.seconds.setdefault(depth, []).append(spent)


def _table(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    rows = []
    for setting in settings:
        per_query = {depth: np.median(times, axis=0) * 1e3 for depth, times in setting.seconds.items()}
        rows.append(
            {
                "engine": setting.engine,
                "label": setting.label,
                "recall": setting.recall,
                "ms": {depth: float(values.mean()) for depth, values in per_query.items()},
                "p50": {depth: float(np.median(values)) for depth, values in per_query.items()},
            }
        )
    return rows


if __name__ == "__main__":
    run_command(main)
