"""Searching an index that `index_build` made: `from retrieval.index import Retriever, open_index`."""
