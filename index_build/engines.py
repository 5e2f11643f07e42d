"""What other engines make of a finished index: Lucene's own index, or a Milvus collection, over the same chunks."""

from __future__ import annotations

from pathlib import Path

from ratchet.config import IndexConfig
from ratchet.progress import Progress
from retrieval.layout import Manifest
from retrieval.opening import open_store


def finish_engine(config: IndexConfig, target: Path, manifest: Manifest) -> None:
    """Build what the config's engine needs beside the shards, unless it is there."""
    if config.engine == "lucene" and not (target / "lucene").exists():
        from retrieval.lucene import build_lucene

        store = open_store(target, manifest)
        with Progress("indexing chunks with Lucene", len(store)) as progress:
            build_lucene(
                store.chunk_texts(0, len(store)),
                target / "lucene",
                stemmer=config.stemmer,
                stop_words=config.stop_words,
                progress=progress,
            )
