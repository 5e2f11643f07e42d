"""`open_index` opens what a config's `index` section names: a folder, a server, a service, or several."""

from __future__ import annotations

import os
from pathlib import Path

from ratchet.core.config import IndexConfig, is_missing
from ratchet.core.errors import UserError
from ratchet.retrieval.fusion import FusedIndex
from ratchet.retrieval.loader import open_folder
from ratchet.retrieval.reranking import RerankedIndex
from ratchet.retrieval.retriever import NoIndex, Retriever


def open_index(config: IndexConfig | str | Path) -> Retriever:
    """Open an index: `config` is a config's `index` section, or the path of an index folder.

    Encoder models are loaded by the first query that needs them. Raises UserError where there is no index, or a damaged
    one.
    """
    if not isinstance(config, IndexConfig):
        return open_folder(config)
    if is_missing(config):
        return NoIndex(config)
    index = _open(config)
    return index if config.rerank is None else RerankedIndex(index, config.rerank)


def _open(config: IndexConfig) -> Retriever:
    if config.parts:
        return FusedIndex({name: open_index(part) for name, part in config.parts.items()}, config.fusion)
    if config.source is not None:
        from ratchet.retrieval.sources.registry import open_source_index

        return open_source_index(config.source)
    if config.url is not None:
        from ratchet.retrieval.backends.remote import RemoteIndex

        return RemoteIndex(config.url, config.served_name, key=_server_key(config))
    return open_folder(config.path, config)


def _server_key(config: IndexConfig) -> str | None:
    if config.key_env is None:
        return None
    key = os.environ.get(config.key_env)
    if not key:
        raise UserError(f"index.key_env: the environment variable {config.key_env} is not set")
    return key
