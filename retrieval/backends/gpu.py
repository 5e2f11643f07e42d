"""Dense vectors on a GPU: all chunks scored for a group of queries at once, from a copy of the vectors in float16.

21 million chunks of 768 dimensions, the Wikipedia of 2018 with E5-base, take 32 GB there. The copy only finds the
candidates: `retrieval.backends.dense` scores these exactly from the stored vectors, so rankings are those of the CPU.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from retrieval.backends.dense import LARGEST_NORM, BlockScorer, Exact, below

logger = logging.getLogger(__name__)

# Candidates of a query beyond 4 k, at which their exact scores decide at once: many vectors are alike.
MAX_SPARE_CANDIDATES = 1 << 16
UNIT_ROUNDOFF = 2.0**-24
HALF_ROUNDOFF = 2.0**-11
HALF_SUBNORMAL = 2.0**-25
"""The largest error of a number too small for float16's full precision."""
BLOCK = 1 << 26
"""Numbers of a block of vectors in float32, and of its scores: 256 MiB each."""
SPARE = 1 << 30
"""Bytes that stay free beside vectors, a block and its scores."""
UPLOAD_ROWS = 1 << 17


def memory_needed(numbers: int) -> int:
    """Bytes of a GPU's free memory that vectors with so many numbers in all are scored in."""
    return numbers * 2 + 3 * BLOCK * 4 + SPARE


def make_scorer(shards: Sequence[np.ndarray], device: str, on_host: Callable[[], BlockScorer]) -> BlockScorer:
    """What scores the chunks on this device: `auto` is a GPU where there is one. Vectors that do not fit its free
    memory are scored on the CPU, by what `on_host` gives, which is logged."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(device).type != "cuda":
        return on_host()
    needed = memory_needed(sum(shard.size for shard in shards))
    free = torch.cuda.mem_get_info(torch.device(device))[0]
    if needed > free:
        logger.warning(
            "the index's vectors and their scores need %.1f GB and %.1f GB of %s are free: searching on the CPU",
            needed / 1e9,
            free / 1e9,
            device,
        )
        return on_host()
    return DeviceScorer(shards, device)


class DeviceScorer:
    """Scores on a device that holds every vector in float16; one group of queries at a time."""

    def __init__(self, shards: Sequence[np.ndarray], device: str) -> None:
        self._device = torch.device(device)
        self._shards = [self._copy(shard) for shard in shards]
        self._lock = threading.Lock()

    def _copy(self, shard: np.ndarray) -> torch.Tensor:
        copied = torch.empty(shard.shape, dtype=torch.float16, device=self._device)
        for first in range(0, len(shard), UPLOAD_ROWS):
            rows = torch.from_numpy(np.array(shard[first : first + UPLOAD_ROWS]))
            copied[first : first + len(rows)] = rows.to(self._device).half()
        return copied

    @torch.inference_mode()
    def candidates(self, vectors: np.ndarray, k: int, exact: Sequence[Exact]) -> list[np.ndarray]:
        pools = candidate_pools(vectors, k, exact)
        rows, start = max(1, BLOCK // max(vectors.shape)), 0
        with self._lock:
            queries = torch.from_numpy(vectors).to(self._device)
            slack = torch.tensor([pool.slack for pool in pools], dtype=torch.float64, device=self._device)
            for shard in self._shards:
                for first in range(0, len(shard), rows):
                    self._offer_block(queries @ shard[first : first + rows].float().T, start + first, slack, pools)
                start += len(shard)
        return [pool.candidates() for pool in pools]

    def _offer_block(
        self, scores: torch.Tensor, first: int, slack: torch.Tensor, pools: Sequence[CandidatePool]
    ) -> None:
        """`scores`: float32 [queries, chunks first, first + 1, ...]; only what may be among the best leaves it."""
        least = torch.tensor([float(pool.min_score) for pool in pools], dtype=torch.float64, device=self._device)
        k = pools[0].k
        if scores.shape[1] >= k:  # k chunks of this block alone surely beat what is further below the k-th than slack
            least = torch.maximum(least, scores.topk(k, dim=1).values[:, -1].double() - slack)
        lowest = torch.nextafter(least.float(), torch.tensor(-math.inf, device=self._device))
        places = (scores >= lowest[:, None]).nonzero()
        values = scores[places[:, 0], places[:, 1]].cpu().numpy()
        query, chunk = places.cpu().numpy().T
        ends = np.searchsorted(query, np.arange(len(pools) + 1))
        for number, pool in enumerate(pools):
            part = slice(ends[number], ends[number + 1])
            if ends[number] < ends[number + 1]:
                pool.add(values[part], chunk[part] + first)


def candidate_pools(vectors: np.ndarray, k: int, exact: Sequence[Exact]) -> list[CandidatePool]:
    """A pool for each query."""
    # Of a vector rounded to float16, and of both vectors rounded again where the GPU multiplies in TF32.
    rounding = 3 * HALF_ROUNDOFF + HALF_SUBNORMAL * math.sqrt(vectors.shape[1])
    # A float32 inner product of n terms, added in any order, is off by at most n u / (1 - n u) |x| |y| (Higham,
    # "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1).
    error = vectors.shape[1] * UNIT_ROUNDOFF
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    slack = 2 * LARGEST_NORM * (error / (1 - error) + rounding) * norms
    return [CandidatePool(k, float(width), scores) for width, scores in zip(slack, exact, strict=True)]


class CandidatePool:
    """The chunks that may be among a query's best k, with scores that are off by up to slack / 2."""

    def __init__(self, k: int, slack: float, exact: Exact) -> None:
        self.min_score = np.float32(-np.inf)
        """Scores below it are out."""
        self.k, self.slack, self._exact = k, slack, exact
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._size = 0
        self._prune_at = k

    def add(self, scores: np.ndarray, chunks: np.ndarray) -> None:
        """Float32 scores of chunks, ascending and above those of every call before."""
        self._parts.append((scores, chunks))
        self._size += len(scores)
        if self._size >= self._prune_at:
            scores, chunks = self._pruned()
            if len(scores) > 4 * self.k + MAX_SPARE_CANDIDATES:
                scores, chunks = self._keep_exact_best(scores, chunks)
            self._parts, self._size = [(scores, chunks)], len(scores)
            self._prune_at = 2 * self._size + 64

    def candidates(self) -> np.ndarray:
        return self._pruned()[1]

    def _pruned(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores and chunks without those that k others surely beat; of chunks with equal exact scores, lower first."""
        scores, chunks = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
        if len(scores) < self.k:
            return scores, chunks
        kth = float(np.partition(scores, len(scores) - self.k)[len(scores) - self.k])
        self.min_score = max(self.min_score, below(kth - self.slack))
        kept = scores >= self.min_score
        return scores[kept], chunks[kept]

    def _keep_exact_best(self, scores: np.ndarray, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The best k alone. What comes later has higher chunk numbers, so that it must score more to displace them."""
        exact = self._exact(chunks)
        best = np.argsort(-exact, kind="stable")[: self.k]
        self.min_score = max(self.min_score, below(exact[best[-1]] - self.slack / 2))
        return scores[best], chunks[best]
