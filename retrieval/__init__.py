"""Searching an index that `index_build` made: `from retrieval import open_index`."""

from typing import TYPE_CHECKING

from ratchet.lazy import lazy_attributes

if TYPE_CHECKING:
    from retrieval.loader import open_index as open_index
else:
    __getattr__ = lazy_attributes(__name__, {"open_index": "retrieval.loader"})
