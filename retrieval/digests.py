"""What identifies an index, told without opening it: `ratchet status` imports no search engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ratchet.core.config import FusionConfig, IndexConfig, RerankConfig, is_missing
from ratchet.core.records import content_key
from ratchet.retrieval.layout import MANIFEST, read_manifest, searched_digest
from ratchet.retrieval.retriever import NoIndex


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


def fused_digest(config: FusionConfig, digests: Mapping[str, str | None]) -> str:
    """Return the digest of an index that is fused of parts with these digests, in their order."""
    return content_key("fused", config.model_dump(), list(digests.items()))


def reranked_digest(config: RerankConfig, index: str) -> str:
    """Return the digest of an index with the digest `index` that is reranked so."""
    return content_key("reranked", index, config.identity)
