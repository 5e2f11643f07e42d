"""Searching an index that `index_build` made: `from retrieval.opening import open_index`."""

import ratchet  # noqa: F401  (before any kernel: it says where compiled kernels are kept)
