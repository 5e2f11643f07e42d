"""Dense search from int8 codes beside the matrix product of the stored vectors, in turns in one run.

    python -m benchmarks.retrieval.dense                         200,000 clustered random vectors of 384 dimensions
    python -m benchmarks.retrieval.dense --vectors FOLDER        encoded ones too: documents.npy and queries.npy there

All rankings are compared, to the last bit, with those of the matrix product, and some with scores of every chunk in
float64. Needs pip install threadpoolctl, which limits the threads of the matrix product.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped,import-not-found,unused-ignore]

from benchmarks.retrieval.timing import log, machine
from commands.arguments import run_command
from retrieval.backends.codes import CodeScorer, encode_blocks
from retrieval.backends.dense import BlockScorer, DenseRanker, HostScorer
from retrieval.index import Ranking

GROUPS = (1, 8, 64)
# Searches in a row of each kind a round, so that its threads have started and its kernels are loaded.
SEARCHES = {1: 8, 8: 3, 64: 1}
# Seconds between the two: after a product, OpenBLAS's threads wait in a loop for a while, and keep the cores busy.
IDLE = 0.1
CHECKED = 4
ENCODED = 1 << 14


class CountingRanker(DenseRanker):
    """Counts the exact scores."""

    scored = 0

    def _scores(self, vector: np.ndarray, chunks: np.ndarray) -> np.ndarray:
        self.scored += len(chunks)
        return super()._scores(vector, chunks)


def main() -> None:
    """Run the comparison that the command line asks for."""
    parser = argparse.ArgumentParser(description="Dense search from int8 codes against the matrix product.")
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
    """Measure both ways with vectors stored in float32 and float16, and print a line for each number of queries."""
    print(
        f"\n{title}: {len(documents):,} vectors of {documents.shape[1]} dimensions, the best {k}, medians of {rounds}"
    )
    print("storage  threads queries  product: ms, CPU ms, MB read  codes: ms, CPU ms, MB read, scored exactly   ratio")
    names = [str(i) for i in range(len(queries))]

    def encode(texts: Sequence[str]) -> np.ndarray:
        return queries[[int(text) for text in texts]]

    for stored in (documents, documents.astype(np.float16)):
        codes = np.concatenate([encode_blocks(stored[at : at + ENCODED]) for at in range(0, len(stored), ENCODED)])
        for threads in (1, 2):
            scorers = (HostScorer([stored]), CodeScorer([stored], [codes.ravel()], threads))
            product, coded = (CountingRanker([stored], encode, always(scorer)) for scorer in scorers)
            with threadpool_limits(threads, "blas"):
                log(f"{title}, {stored.dtype}, {threads} threads")
                check(product.rank(names, k), coded.rank(names, k), stored, queries)
                for group in GROUPS:
                    times: dict[Any, list[tuple[float, float]]] = {product: [], coded: []}
                    coded.scored = searched = 0
                    for number in range(rounds):
                        for ranker in (product, coded)[:: 1 if number % 2 else -1]:
                            time.sleep(IDLE)
                            for search in range(SEARCHES[group]):
                                first = (number * SEARCHES[group] + search) * group % len(names)
                                asked = names[first : first + group]
                                times[ranker].append(timed(ranker, asked, k))
                                searched += len(asked) if ranker is coded else 0
                    share = coded.scored / searched / len(stored)
                    (old, old_cpu), (new, new_cpu) = (
                        1e3 * np.median(times[ranker], axis=0) / group for ranker in (product, coded)
                    )
                    reread = share * stored.nbytes
                    print(
                        f"{stored.dtype!s:<8} {threads:>7} {group:>7}  {old:>10.3f} {old_cpu:>8.3f} "
                        f"{stored.nbytes / group / 1e6:>8.2f}  {new:>8.3f} {new_cpu:>8.3f} "
                        f"{(codes.nbytes / group + reread) / 1e6:>8.2f} {share:>10.5%}   {old / new:>12.2f}",
                        flush=True,
                    )


def always(scorer: BlockScorer) -> Callable[[Sequence[np.ndarray]], BlockScorer]:
    """What makes this scorer, whatever it is given."""
    return lambda shards: scorer


def timed(ranker: DenseRanker, asked: Sequence[str], k: int) -> tuple[float, float]:
    """Seconds, and CPU seconds of the process, of a search."""
    started, cpu = time.perf_counter(), time.process_time()
    ranker.rank(asked, k)
    return time.perf_counter() - started, time.process_time() - cpu


def check(product: Sequence[Ranking], coded: Sequence[Ranking], stored: np.ndarray, queries: np.ndarray) -> None:
    """Both rankings of every query are the same, and for some are those by the scores of all vectors in float64."""
    for number, (one, other) in enumerate(zip(product, coded, strict=True)):
        assert one.chunks.tolist() == other.chunks.tolist() and one.scores.tobytes() == other.scores.tobytes()
        if number < CHECKED:
            scores = stored.astype(np.float64) @ queries[number].astype(np.float64)
            best = np.argsort(-scores, kind="stable")[: len(one.chunks)]
            assert np.allclose(one.scores, scores[best], rtol=0, atol=1e-13)
            assert np.allclose(scores[one.chunks], scores[best], rtol=0, atol=1e-13)


if __name__ == "__main__":
    run_command(main)
