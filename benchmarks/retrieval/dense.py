"""Dense search from int8 codes beside the flat indexes of faiss, in one run; needs pip install '.[benchmark]'.

    python -m benchmarks.retrieval.dense                         200,000 clustered random vectors of 384 dimensions
    python -m benchmarks.retrieval.dense --vectors FOLDER        encoded ones too: documents.npy and queries.npy there

It prints how many queries get the chunks that scores of all vectors in float64 rank best (equal scores in ascending
chunk number), in the same order and in any order, and milliseconds a query.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.retrieval.timing import machine
from commands.arguments import run_command
from retrieval.backends.codes import encode_blocks
from retrieval.backends.dense import DenseRanker

GROUPS = (1, 8, 64)
ENCODED = 1 << 14
Search = Callable[[np.ndarray], Sequence[np.ndarray]]
"""Queries to the numbers of their best chunks, best first."""


def main() -> None:
    """Run the comparison that the command line asks for."""
    parser = argparse.ArgumentParser(description="Dense search from int8 codes against faiss.")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--vectors", type=Path, metavar="FOLDER", help="documents.npy and queries.npy: encoded ones")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for key, value in machine().items():
        print(f"{key}: {value}")
    compare("random", *clustered(options.documents, options.dimension, options.seed), options.k, options.rounds)
    if options.vectors:
        documents, queries = (np.load(options.vectors / f"{name}.npy") for name in ("documents", "queries"))
        chosen = np.random.default_rng(options.seed).permutation(len(queries))[: max(GROUPS)]
        compare("encoded", documents, queries[chosen], options.k, options.rounds)


def clustered(documents: int, dimension: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors around one center for every 100, and queries near some of them."""
    random = np.random.default_rng(seed)

    def normal(count: int) -> np.ndarray:
        return random.standard_normal((count, dimension), np.float32)

    def unit(vectors: np.ndarray) -> np.ndarray:
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    centers = normal(max(1, documents // 100))
    vectors = centers[random.integers(0, len(centers), documents)]
    vectors += normal(documents)
    near = vectors[random.integers(0, documents, max(GROUPS))]
    return unit(vectors), unit(near + normal(len(near)))


def compare(title: str, documents: np.ndarray, queries: np.ndarray, k: int, rounds: int) -> None:
    """Measure every way, and print a line for each number of threads."""
    import faiss

    print(f"\n{title}: {len(documents):,} vectors of {documents.shape[1]} dimensions, {len(queries)} queries, best {k}")
    truth = [np.argsort(-(documents @ query.astype(np.float64)), kind="stable")[:k] for query in queries]
    codes = np.concatenate([encode_blocks(documents[at : at + ENCODED]) for at in range(0, len(documents), ENCODED)])
    flat: dict[str, Any] = {"faiss flat float32": faiss.IndexFlatIP(documents.shape[1])}
    for name in ("fp16", "8bit"):
        kind = getattr(faiss.ScalarQuantizer, f"QT_{name}")
        flat[f"faiss {name}"] = faiss.IndexScalarQuantizer(documents.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    for index in flat.values():
        index.train(documents)
        index.add(documents)
    for threads in (1, 2):
        faiss.omp_set_num_threads(threads)
        ways = {"codes": search_codes(documents, codes.ravel(), threads, k)} | {
            name: search_faiss(index, k) for name, index in flat.items()
        }
        for name, search in ways.items():
            best = search(queries)
            same = sum(one.tolist() == other.tolist() for one, other in zip(best, truth, strict=True))
            alike = sum(set(one) == set(other) for one, other in zip(best, truth, strict=True))
            times = ", ".join(f"{count}: {timed(search, queries, count, rounds):.3f} ms" for count in GROUPS)
            print(
                f"{threads} threads  {name:<20} same order {same}, same chunks {alike}; a query of {times}", flush=True
            )


def search_codes(documents: np.ndarray, codes: np.ndarray, threads: int, k: int) -> Search:
    """Search from int8 codes."""
    asked: list[np.ndarray] = []
    ranker = DenseRanker([documents], [codes], lambda texts: asked[0], threads)

    def search(queries: np.ndarray) -> list[np.ndarray]:
        asked[:] = [queries]
        return [ranking.chunks for ranking in ranker.rank([""] * len(queries), k)]

    return search


def search_faiss(index: Any, k: int) -> Search:
    """Search by an index of faiss."""
    return lambda queries: list(index.search(queries, k)[1])


def timed(search: Search, queries: np.ndarray, count: int, rounds: int) -> float:
    """Milliseconds a query of so many at once: the median."""
    times = []
    for number in range(rounds):
        asked = np.take(queries, range(number * count, (number + 1) * count), axis=0, mode="wrap")
        started = time.perf_counter()
        search(asked)
        times.append(time.perf_counter() - started)
    return 1e3 * float(np.median(times)) / count


if __name__ == "__main__":
    run_command(main)
