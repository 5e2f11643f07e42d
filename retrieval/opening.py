"""Opening indexes: `open_index(config.index)` for what a config names, `open_folder(path)` for a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.config import IndexConfig, parse
from ratchet.errors import UserError
from ratchet.records import content_key
from retrieval.index import Index, Retriever
from retrieval.layout import SHARDS, Manifest, read_manifest, read_shards, verify
from retrieval.ranker import Ranker
from retrieval.sparse.analyzer import Words
from retrieval.sparse.engine import Bm25, Engine
from retrieval.sparse.rankers import SparseRanker, encoded_queries, word_queries
from retrieval.sparse.shards import Shard
from retrieval.store import Store

MILVUS_LITE = "milvus.db"


def open_index(config: IndexConfig | str | Path, threads: int | None = None) -> Retriever:
    """The index that a config's `index` names: a search server, several indexes fused, or a folder; or of this folder.

    `threads`: at most so many for one search by our engine; default: one per core.

    No index there, or a damaged one, is a UserError that says what to do.
    """
    if not isinstance(config, IndexConfig):
        return open_folder(config, threads=threads)
    if config.url is not None:
        from retrieval.serving.client import RemoteIndex

        return RemoteIndex(config.url, config.served_name)
    if config.kind == "hybrid":
        return _open_hybrid(config, threads)
    return open_folder(config.path, config.encoder, config.milvus, threads)


def open_folder(
    path: str | Path, encoder: dict[str, Any] | None = None, milvus: str = "", threads: int | None = None
) -> Index:
    """The index in a folder; encoder: settings that replace those that it was built with, such as the device."""
    folder = Path(path)
    manifest = read_manifest(folder)
    try:
        store = open_store(folder, manifest)
    except UserError:
        now = read_manifest(folder)
        if now == manifest:
            raise
        manifest, store = now, open_store(folder, now)  # documents were added or removed in between
    return Index(store, _ranker(folder, manifest, store, encoder or {}, milvus, threads), manifest.digest)


def open_store(folder: Path, manifest: Manifest) -> Store:
    """The chunks of an index, after checking that its files are those that were built."""
    manifests = read_shards(folder, manifest)
    verify(folder, manifest, manifests)
    shards: list[Shard] = []
    chunk = document = 0
    for entry, shard in zip(manifest.shards, manifests, strict=True):
        shards.append(Shard(folder / SHARDS / entry.name, shard, chunk, document))
        chunk, document = chunk + shard.chunks, document + shard.documents
    removed = np.empty(0, np.int64)
    if manifest.removed_name is not None:
        removed = np.fromfile(folder / manifest.removed_name, "<i8").astype(np.int64)
    return Store(shards, removed)


def _ranker(
    folder: Path, manifest: Manifest, store: Store, encoder: dict[str, Any], milvus: str, threads: int | None
) -> Ranker:
    settings = manifest.settings
    encoder = {**manifest.encoder, **encoder}
    if settings.engine == "lucene":
        from retrieval.backends.lucene import LuceneRanker

        lucene = LuceneRanker(folder / "lucene", settings.k1, settings.b)
        if len(lucene) != len(store):  # a build was killed between Lucene's index and the manifest
            raise UserError(
                f"{folder}: its Lucene index has {len(lucene)} chunks, and {len(store)} are listed; run "
                "`python -m index_build --config ...` again, which goes on from there"
            )
        return lucene
    if settings.engine == "milvus" or settings.kind == "dense":
        return _vector_ranker(folder, manifest, store, encoder, milvus)
    if settings.kind == "bm25":
        read = word_queries(Words(settings.stemmer, settings.stop_words))
        return SparseRanker(Engine(store.shards, Bm25(settings.k1, settings.b), threads), read)
    return SparseRanker(
        Engine(store.shards, None, threads), encoded_queries(_sparse_encoder(folder, settings.encoder, encoder))
    )


def _sparse_encoder(folder: Path, digest: str, settings: dict[str, Any]) -> Callable[[], Any]:
    def load() -> Any:
        from retrieval.encoders.loading import load_encoder
        from retrieval.encoders.sparse import EncoderConfig

        encoder = load_encoder(parse(EncoderConfig, settings, "index.encoder"))
        _same_encoder(folder, digest, encoder.digest)
        return encoder

    return _once(load)


def _same_encoder(folder: Path, built: str, now: str) -> None:
    if built != now:
        raise UserError(
            f"{folder}: index.encoder is not the encoder that this index was built with (digest {now}, built with "
            f"{built}); name that one, or build another index with this one"
        )


def _open_hybrid(config: IndexConfig, threads: int | None) -> Index:
    from retrieval.backends.hybrid import HybridRanker

    parts = []
    for part in config.parts:
        opened = open_index(part, threads)
        if not isinstance(opened, Index):
            raise UserError("index.parts: the parts of a hybrid are index folders on this machine, not servers")
        parts.append(opened)
    digest = content_key("hybrid", config.depth, [part.digest for part in parts])
    first, *others = parts
    for other, part in zip(others, config.parts[1:], strict=True):
        if other.store.digest != first.store.digest:
            raise UserError(
                f"index.parts: {part.path} does not have the same chunks as {config.parts[0].path}; build both by "
                "one `python -m index_build` with this config, from the same documents"
            )
    return Index(first.store, HybridRanker([part.ranker for part in parts], config.depth), digest)


def _vector_ranker(folder: Path, manifest: Manifest, store: Store, encoder: dict[str, Any], milvus: str) -> Ranker:
    settings = manifest.settings
    load = (_dense_encoder if settings.kind == "dense" else _sparse_encoder)(folder, settings.encoder, encoder)
    if settings.engine == "milvus":
        from retrieval.backends.milvus import MilvusRanker

        return MilvusRanker(
            milvus_config(folder, milvus), vector_space(manifest, store), lambda texts: load().encode_queries(texts)
        )
    from retrieval.backends.dense import DenseRanker

    matrices = [shard.array("vectors").reshape(len(shard), -1) for shard in store.shards]
    return DenseRanker(matrices, lambda texts: load().encode_queries(texts))


def milvus_config(folder: Path, address: str) -> Any:
    """Where an index's vectors are: at the address of a cluster, or in a file of the index folder."""
    from retrieval.backends.milvus import MilvusConfig

    return MilvusConfig(uri=address or str(folder / MILVUS_LITE))


def vector_space(manifest: Manifest, store: Store) -> Any:
    """What a Milvus collection of this index holds."""
    from retrieval.backends.milvus import VectorSpace

    return VectorSpace(
        digest=content_key(manifest.settings.encoder, store.digest),
        sparse=manifest.settings.kind == "sparse",
        dimension=max((shard.manifest.terms for shard in store.shards), default=0),
        chunks=len(store),
    )


def _dense_encoder(folder: Path, digest: str, settings: dict[str, Any]) -> Callable[[], Any]:
    def load() -> Any:
        from retrieval.encoders.dense import DenseConfig, load_dense_encoder

        encoder = load_dense_encoder(parse(DenseConfig, settings, "index.encoder"))
        _same_encoder(folder, digest, encoder.digest)
        return encoder

    return _once(load)


def _once(load: Callable[[], Any]) -> Callable[[], Any]:
    """`load`, called by the first query: opening an index stays quick. Other threads wait for it."""
    lock = threading.Lock()
    loaded: list[Any] = []

    def get() -> Any:
        with lock:
            if not loaded:
                loaded.append(load())
            return loaded[0]

    return get
