"""From queries to posting lists: their terms in one order, each one's region in a shard, and which of them to add."""

from __future__ import annotations

import numpy as np

from ratchet.numba_cache import njit
from retrieval.arrays import Doubles, Hashes, Numbers, Words
from retrieval.shards import NOT_THERE
from retrieval.sparse.postings import BLOCKS

LARGEST_WEIGHT = float(np.finfo(np.float32).max)


@njit(nogil=True, cache=True)
def merge_terms(offsets: Numbers, keys: Hashes, weights: Doubles) -> int:
    """Sort every query's terms and add up the weights of those that come twice, in place.

    Returns the largest number of different terms in a query, and -1 where a weight is no number. Term order, not query
    order: the same terms in another order get the same scores to the last bit.
    """
    kept = start = largest = 0
    for q in range(len(offsets) - 1):
        end, first = offsets[q + 1], kept
        order = np.argsort(keys[start:end], kind="mergesort") + start
        ordered_keys, ordered_weights = keys[order], weights[order]
        for i in range(len(order)):
            if not abs(ordered_weights[i]) <= LARGEST_WEIGHT:
                return -1
            if i > 0 and ordered_keys[i] == ordered_keys[i - 1]:
                weights[kept - 1] += ordered_weights[i]
            else:
                keys[kept], weights[kept] = ordered_keys[i], ordered_weights[i]
                kept += 1
        start, offsets[q + 1] = end, kept
        largest = max(largest, kept - first)
    return largest


@njit(nogil=True, cache=True)
def locate_lists(
    hashes: Hashes, regions: Words, end: int, keys: Hashes, terms: Numbers, begins: Numbers, ends: Numbers
) -> None:
    """For term keys: their numbers and regions in one shard, as words begins[i] .. ends[i] - 1; -1, -1 where absent.

    Without hashes keys are numbers. `end` is the posting file's.
    """
    for i in range(len(keys)):
        term = np.int64(keys[i])
        if len(hashes) > 0:
            low, high = 0, len(hashes)
            while low < high:
                middle = (low + high) >> 1
                if hashes[middle] < keys[i]:
                    low = middle + 1
                else:
                    high = middle
            term = np.int64(low if low < len(hashes) and hashes[low] == keys[i] else -1)
        terms[i], begins[i], ends[i] = term, -1, -1
        if 0 <= term < len(regions) and regions[term] != NOT_THERE:
            after = term + 1
            while after < len(regions) and regions[after] == NOT_THERE:
                after += 1
            begins[i] = regions[term]
            ends[i] = regions[after] if after < len(regions) else end


@njit(nogil=True, cache=True)
def count_postings(words: Words, begins: Numbers, sizes: Numbers) -> None:
    """Add every list's number of postings to sizes."""
    for i in range(len(begins)):
        if begins[i] >= 0:
            head = words[begins[i]]
            sizes[i] += words[begins[i] + 1] if head >= BLOCKS else head
