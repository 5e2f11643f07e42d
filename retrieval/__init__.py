"""Searching an index that `index_build` made."""
