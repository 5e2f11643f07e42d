"""Size, recall and time of dense indexes by `index.faiss`, beside what `ratchet plan` says of them.

    python -m benchmarks.dense                      about three minutes on one core
    python -m benchmarks.dense --write              and writes the table into docs/results/search.md

The vectors are drawn: each lies around one of 2,000 centres, in directions of which few count much, as those of texts
do, and queries lie around the same centres. Recall is the share of the 10 best of `Flat` that are found. Needs
`pip install '.[dense]'`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before faiss is loaded: times are those of one core

import numpy as np

from benchmarks.pages import RESULTS, taken, write_figures
from ratchet.commands.main import run_command
from ratchet.retrieval.backends.dense import DenseRanker, build_faiss
from ratchet.retrieval.footprint import dense_needs

SEARCHES = (
    ("Flat", ""),
    *(("HNSW32", f"efSearch={ef}") for ef in (16, 128)),
    *(("IVF256,Flat", f"nprobe={lists}") for lists in (16, 64)),
    *(("IVF256,PQ64", f"nprobe={lists}") for lists in (16, 64)),
)
CENTRES, SPREAD, DECAY = 2_000, 1.0, 0.5
K = 10
HEADINGS = ("`index.faiss`", "bytes a vector", "planned", "recall@10", "CPU ms a query", "planned", "CPU s to build")


def draw_vectors(count: int, dimension: int, centres: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """float32 [count, dimension] of length 1: centres and noise, whose i-th direction weighs i ** -DECAY."""
    weights = np.arange(1, dimension + 1) ** -DECAY
    rows = centres[draw.integers(len(centres), size=count)] + SPREAD * draw.standard_normal((count, dimension))
    rows *= weights
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def measure(vectors: np.ndarray, queries: np.ndarray, folder: Path) -> list[Sequence[str]]:
    """The table's rows."""
    count, dimension = vectors.shape
    built: dict[str, tuple[Path, float]] = {}
    best: list[set[int]] = []
    rows: list[Sequence[str]] = []
    for factory, parameters in SEARCHES:
        if factory not in built:
            path, started = folder / str(len(built)), time.process_time()
            with path.open("wb") as file:
                build_faiss(dimension, factory, lambda: [vectors], file.write)
            built[factory] = path, time.process_time() - started
        path, seconds = built[factory]
        ranker = DenseRanker([path], lambda numbers: queries[[int(number) for number in numbers]], parameters)
        ranker.rank(["0"], K)
        started = time.process_time()
        found = [set(ranker.rank([str(number)], K)[0].chunks.tolist()) for number in range(len(queries))]
        milliseconds = (time.process_time() - started) / len(queries) * 1000
        best = best or found  # `Flat` is the first
        recall = sum(len(some & all_) for some, all_ in zip(found, best, strict=True)) / (K * len(queries))
        need = dense_needs(dimension, count, 1, factory, parameters)
        rows.append(
            (
                f"`{f'{factory} {parameters}'.strip()}`",
                f"{path.stat().st_size / count:,.0f}",
                f"{need.size / count:,.0f}",
                f"{recall:.3f}",
                f"{milliseconds:.3g}",
                f"{need.milliseconds:.2g}",
                f"{seconds:,.0f}",
            )
        )
        print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure, print, and with --write also write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dense", description="Dense indexes side by side.")
    parser.add_argument("--vectors", type=int, default=20_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="write the table into docs/results/search.md")
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((CENTRES, options.dimension))
    vectors, queries = (
        draw_vectors(count, options.dimension, centres, draw) for count in (options.vectors, options.queries)
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(vectors, queries, Path(folder))
    lines = [
        f"`python -m benchmarks.dense`: {options.vectors:,} vectors of {options.dimension} numbers in one shard, "
        f"{options.queries} queries one by one, one core beside other work ({taken()}).",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
        *(f"| {' | '.join(cells)} |" for cells in rows),
    ]
    print(*lines, sep="\n")
    if options.write:
        write_figures(RESULTS / "search.md", "benchmarks.dense", "\n".join(lines))


if __name__ == "__main__":
    run_command(main)
