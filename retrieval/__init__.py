"""Searching an index that `index_build` made: `from ratchet.retrieval import open_index`."""

from typing import TYPE_CHECKING

from ratchet.core.lazy import lazy_attributes

if TYPE_CHECKING:
    from ratchet.retrieval.loader import open_index as open_index
else:
    __getattr__ = lazy_attributes(__name__, {"open_index": "ratchet.retrieval.loader"})
