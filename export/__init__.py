"""Exports of a run in forms that other programs take: an adapter, merged weights, a data set."""
