"""`open_index` opens what a config's `index` section names: a folder, a server, a service, or several."""

from __future__ import annotations

import os
from pathlib import Path

from ratchet.core.config import IndexConfig, is_missing
from ratchet.core.errors import UserError
from ratchet.core.records import content_key
from ratchet.retrieval.fusion import FusedIndex, fused_digest
from ratchet.retrieval.layout import MANIFEST, read_manifest, searched_digest
from ratchet.retrieval.loader import open_folder
from ratchet.retrieval.reranking import RerankedIndex, reranked_digest
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


def index_digest(config: IndexConfig) -> str | None:
    """Return what identifies an index without asking a server; None where it is not built.

    A search server or service is known by its address alone: what is behind it is checked as it answers.
    """
    if is_missing(config):
        return NoIndex.digest
    digest = _digest(config)
    return digest if config.rerank is None or digest is None else reranked_digest(config.rerank, digest)


def _digest(config: IndexConfig) -> str | None:
    if config.parts:
        parts = {name: index_digest(part) for name, part in config.parts.items()}
        return None if None in parts.values() else fused_digest(config.fusion, parts)
    if config.source is not None:
        return content_key("source", config.source.model_dump(mode="json", exclude={"cache", "mode"}))
    if config.url is not None:
        return content_key("served", config.url, config.served_name)
    if not (Path(config.path) / MANIFEST).exists():
        return None
    return searched_digest(read_manifest(Path(config.path)), config)


def _server_key(config: IndexConfig) -> str | None:
    if config.key_env is None:
        return None
    key = os.environ.get(config.key_env)
    if not key:
        raise UserError(f"index.key_env: the environment variable {config.key_env} is not set")
    return key
