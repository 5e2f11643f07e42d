"""The arrays of the kernels, by the type of their elements; each function says the shapes of its own."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Halves = NDArray[np.uint16]
Words = NDArray[np.uint32]
Hashes = NDArray[np.uint64]
Places = NDArray[np.int32]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


class Pointer(Protocol):
    """Where an array's elements are (`retrieval.sparse.bits.pointer`): it takes an index, and has no length."""

    def __getitem__(self, at: int) -> int: ...


Files = tuple[Bytes, Words]
"""A posting file of n bytes, twice: uint8 [n], uint32 [n / 4]."""
Tables = tuple[Words, Floats, Words, Numbers, Words]
"""The companions of a posting file: the lengths of chunks [chunks], the weights of value numbers [values], the first
value number of each code [256], and the keys and values of exceptions [exceptions]. A learned sparse index has no
lengths, a BM25 index no weights and codes."""
Store = tuple[tuple[Pointer, Pointer, Pointer, Pointer, Pointer, Pointer], int, bool]
"""The result of `retrieval.sparse.postings.store_of`."""
Bm25Numbers = tuple[tuple[float, float, float], tuple[float, float, float]]
"""k1, b and the mean length of chunks: those that a shard's codes were made with, and those of the search."""
ShardArrays = tuple[Files, Store, Bm25Numbers]
"""A shard as it is searched."""
QueryLists = tuple[Numbers, Numbers, Doubles]
"""A query's table of lists [terms, ROW], and the numbers and weights of its terms [terms]."""
Window = tuple[int, int, int, int]
"""The shard's first chunk in the index, a window's first in the shard, its chunks, and the query's postings in it."""
Heap = tuple[Doubles, Numbers]
"""Scores and numbers [k] of a query's best chunks so far."""
Workspace = tuple[Halves, Halves, Places, Halves, Places, Doubles, Bytes, Halves]
"""The result of `retrieval.sparse.selection.new_workspace`."""
Screen = tuple[Bytes, Bytes, Bytes, Numbers, Numbers, Bytes]
"""Coarse bounds [WINDOW] and, of each list: the bound of each code [lists, codes], of each class [lists, CLASSES]; of
the BITS blocks that are added: where their masks and codes begin [lists], and the bounds of classes."""
