"""How long posting lists get, and how many bytes they take, in a shard far larger than the sample that was looked at.

Two laws of text are used. A term that is in a share of the sample's chunks is in that share of all chunks. And new
terms keep coming: twice the chunks have 2^growth times the terms (Heaps); `growth` is measured by halving the sample.
Terms that are rare in the sample say little about themselves, so their lists are drawn from the power law that has the
number of terms and of postings that these two laws leave for them. Bytes are those of random lists, really encoded.
"""

from __future__ import annotations

import numpy as np

from index_build.encode import encode_lists, room
from retrieval.sparse.postings import WINDOW

# A term in so many chunks of the sample keeps its share of the chunks.
KNOWN = 8
# Lists with fewer postings than this in a window are encoded over the whole shard, for they are short or nearly so.
FEW = 64
DRAWS = 8


def spectrum(
    frequencies: np.ndarray, seen: int, chunks: int, growth: float, limit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(sizes, how many lists have each) in a shard of `chunks`, after `seen` chunks with these document frequencies.

    `limit`: no more terms than this can come (the vocabulary of a learned sparse encoder).
    """
    frequencies = frequencies[frequencies > 0]
    scale = chunks / max(seen, 1)
    if scale <= 1 or not len(frequencies):
        sizes = np.maximum(frequencies * scale, 1.0)
        return sizes, frequencies * scale / sizes
    known = frequencies >= KNOWN
    rare = frequencies[~known]
    head = frequencies[known] * scale
    if not len(rare):
        return head, np.ones(len(head))
    terms = len(frequencies) * scale**growth
    if limit is not None:
        terms = min(terms, limit)
    tail = max(terms - len(head), len(rare))
    sizes, shares = _power_law(float(rare.sum() * scale / tail), KNOWN * scale)
    return np.concatenate([head, sizes]), np.concatenate([np.ones(len(head)), shares * tail])


def _power_law(mean: float, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """(sizes from 1 to `largest`, their shares): the power law with this mean."""
    sizes = np.unique(np.round(np.geomspace(1, max(largest, 1), 200)))
    widths = np.diff(np.append(sizes, sizes[-1] + 1))
    if mean <= 1 or len(sizes) == 1:
        return np.array([max(mean, 1.0)]), np.ones(1)
    low, high = -5.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        shares = widths * sizes**-middle
        shares /= shares.sum()
        low, high = (middle, high) if shares @ sizes > mean else (low, middle)
    # What rounding of the classes leaves is put right: postings are what most bytes go by.
    return sizes * (mean / (shares @ sizes)), shares


class ListBytes:
    """Bytes of posting lists in a shard of so many chunks, by their sizes."""

    def __init__(self, chunks: int, placed: bool) -> None:
        """`placed`: the lists of a learned sparse index, which hold 4 bits more a posting."""
        self._sizes = np.unique(np.round(np.geomspace(1, max(chunks, 1), 100))).astype(np.int64)
        per_window = self._sizes * WINDOW / max(chunks, 1)
        many = (per_window >= FEW) & (chunks > WINDOW)
        of_list = np.empty(len(self._sizes))
        # Where there are few, one draw says little.
        drawn = [_encoded(self._sizes[~many], chunks, placed, seed) for seed in range(DRAWS)]
        of_list[~many] = np.mean(drawn, axis=0)
        # Windows of one density are alike: one stands for all.
        of_list[many] = _encoded(per_window[many].astype(np.int64), WINDOW, placed) * (chunks / WINDOW)
        self._per_posting = of_list / self._sizes

    def __call__(self, sizes: np.ndarray) -> np.ndarray:
        """Bytes of lists of these sizes: float64."""
        sizes = np.maximum(sizes, 1)
        return sizes * np.interp(np.log(sizes), np.log(self._sizes), self._per_posting)


def _encoded(sizes: np.ndarray, chunks: int, placed: bool, seed: int = 0) -> np.ndarray:
    """Bytes of one random list of each size among so many chunks."""
    random = np.random.default_rng(seed)
    lists = [random_list(random, int(size), chunks) for size in sizes]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])]).astype(np.int64)
    postings = int(offsets[-1])
    if not postings:
        return np.zeros(len(lists))
    data = np.zeros(room(postings, len(lists)), np.uint8)
    regions = np.empty(len(lists), np.int64)
    used = encode_lists(
        offsets,
        np.concatenate(lists).astype(np.uint32),
        np.ones(postings, np.uint8),
        np.zeros(postings if placed else 0, np.uint8),
        chunks,
        data,
        regions,
    )
    return 4.0 * np.diff(np.append(regions, used >> 2))


def random_list(random: np.random.Generator, size: int, chunks: int) -> np.ndarray:
    """int64 ascending: exactly `size` of `chunks` chunk numbers."""
    if size * 20 > chunks:
        return np.sort(random.permutation(chunks)[:size])
    drawn = np.unique(random.integers(0, chunks, size))
    while len(drawn) < size:
        drawn = np.union1d(drawn, random.integers(0, chunks, size - len(drawn)))
    return drawn
