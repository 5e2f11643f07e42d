"""What other engines make of a finished index: Lucene's own index, or a Milvus collection, over the same chunks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratchet.core.config import IndexConfig
from ratchet.core.progress import Progress
from ratchet.retrieval.index import Shard, Store
from ratchet.retrieval.layout import K1, B, Manifest
from ratchet.retrieval.loader import milvus_uri, open_store, vector_space

# Rows that are handed to Milvus at once.
ROWS = 4096


def build_engine_index(config: IndexConfig, target: Path, manifest: Manifest) -> None:
    """Build what the config's engine needs beside the shards, unless it is there."""
    if config.engine == "lucene":
        _finish_lucene(config, target, open_store(target, manifest))
    elif config.engine == "milvus":
        _finish_milvus(config, target, manifest, open_store(target, manifest))


def drop_older_engine_index(config: IndexConfig, target: Path, manifest: Manifest) -> None:
    """Delete what an engine holds of an older manifest, now that another one has taken its place."""
    if config.engine == "milvus":
        from ratchet.retrieval.backends.milvus import drop_milvus

        drop_milvus(milvus_uri(target, config.milvus), vector_space(manifest, open_store(target, manifest)))


def _finish_lucene(config: IndexConfig, target: Path, store: Store) -> None:
    from ratchet.retrieval.backends.lucene import LuceneRanker, build_lucene

    folder = target / "lucene"
    if folder.exists():
        if len(LuceneRanker(folder, K1, B)) == len(store):
            return
        shutil.rmtree(folder)  # of before shards were added
    with Progress("indexing chunks with Lucene", len(store)) as progress:
        texts = store.chunk_texts(0, len(store))
        build_lucene(texts, folder, stemmer=config.stemmer, progress=progress)


def _finish_milvus(config: IndexConfig, target: Path, manifest: Manifest, store: Store) -> None:
    from ratchet.retrieval.backends.milvus import build_milvus

    with Progress("sending vectors to Milvus", len(store)) as progress:
        build_milvus(
            milvus_uri(target, config.milvus),
            vector_space(manifest, store),
            _vectors(store),
            progress.advance,
        )


def _vectors(store: Store) -> Iterator[Any]:
    """The vectors of all chunks."""
    for shard in store.shards:
        for at in range(0, len(shard), ROWS):
            yield _rows(shard, at, min(at + ROWS, len(shard)))


def _rows(shard: Shard, first: int, last: int) -> Any:
    if "vectors" in shard.manifest.files:
        return shard.array("vectors").reshape(len(shard), -1)[first:last]
    from ratchet.retrieval.encoders.vectors import SparseVectors

    offsets = shard.array("row_offsets")[first : last + 1]
    span = slice(int(offsets[0]), int(offsets[-1]))
    return SparseVectors(offsets - offsets[0], shard.array("row_terms")[span], shard.array("row_values")[span])
