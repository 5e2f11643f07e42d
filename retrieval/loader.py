"""Opens the indexes of folders: `open_folder`, and `open_store` its chunks alone."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ratchet.core.config import EncoderConfig, IndexConfig, parse
from ratchet.core.errors import UserError
from ratchet.core.records import content_key
from ratchet.core.words import read_stop_words
from ratchet.retrieval.index import Index, Ranker, Shard, Store
from ratchet.retrieval.layout import (
    SHARDS,
    IndexSettings,
    Manifest,
    read_manifest,
    read_shards,
    searched_digest,
    verify,
)

MILVUS_LITE = "milvus.db"


def open_folder(path: str | Path, config: IndexConfig | None = None) -> Index:
    """Open the index in a folder. `config` has what counts when an index is searched: settings of the encoder that
    replace those it was built with, such as the device, the address of Milvus, and BM25's parameters and stop words."""
    folder, config = Path(path), config or IndexConfig(path=str(path))
    manifest = read_manifest(folder)
    try:
        store = open_store(folder, manifest)
    except UserError:
        now = read_manifest(folder)
        if now == manifest:
            raise
        manifest, store = now, open_store(folder, now)  # documents were added in between
    return Index(store, _ranker(folder, manifest, store, config), searched_digest(manifest, config))


def open_store(folder: Path, manifest: Manifest) -> Store:
    """Open the chunks of an index, after checking that its files are those that were built."""
    manifests = read_shards(folder, manifest)
    verify(folder, manifest, manifests)
    shards: list[Shard] = []
    chunk = document = 0
    for entry, shard in zip(manifest.shards, manifests, strict=True):
        shards.append(Shard(folder / SHARDS / entry.name, shard, chunk, document))
        chunk, document = chunk + shard.chunks, document + shard.documents
    return Store(shards)


def _ranker(folder: Path, manifest: Manifest, store: Store, config: IndexConfig) -> Ranker:
    settings, given = manifest.settings, config.encoder
    # The given path as it was found: the dump has it as it is written.
    path = {"path": given.path} if given and given.path else {}
    encoder = manifest.encoder | ({**given.model_dump(mode="json", exclude_unset=True), **path} if given else {})
    if settings.engine == "lucene":
        from ratchet.retrieval.backends.lucene import LuceneRanker

        lucene = LuceneRanker(
            *(folder / "lucene", config.k1, config.b),
            stemmer=settings.stemmer,
            stop_words=read_stop_words(config.stop_words),
        )
        if len(lucene) != len(store):  # a build was killed between Lucene's index and the manifest
            raise UserError(
                f"{folder}: its Lucene index has {len(lucene)} chunks, and {len(store)} are listed; run "
                "`ratchet index --config ...` again, which resumes the build"
            )
        return lucene
    if settings.engine == "milvus" or settings.kind == "dense":
        return _vector_ranker(folder, manifest, store, encoder, config)
    # Late: Numba takes longer to import than a command that opens no index takes in all.
    from ratchet.retrieval.sparse.engine import Bm25, Engine
    from ratchet.retrieval.sparse.terms import encoded_queries, word_queries

    if settings.kind == "bm25":
        from ratchet.retrieval.sparse.terms import Analyzer

        read = word_queries(Analyzer(settings.stemmer, read_stop_words(config.stop_words)))
        return Engine(store.shards, Bm25(config.k1, config.b), None, read, Bm25(settings.k1, settings.b))
    read = encoded_queries(_encoder_loader(folder, settings, encoder))
    return Engine(store.shards, None, None, read)


def _encoder_loader(folder: Path, settings: IndexSettings, encoder: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that loads the encoder with the first query, so that opening an index stays quick. An encoder
    other than the one that the index was built with is a UserError."""
    lock = threading.Lock()

    @functools.cache
    def load() -> Any:
        loaded: Any
        if settings.kind == "dense":
            from ratchet.retrieval.encoders.dense import open_dense_encoder

            loaded = open_dense_encoder(parse(EncoderConfig, encoder, "index.encoder"))
        else:
            from ratchet.retrieval.encoders.sparse import load_encoder

            loaded = load_encoder(parse(EncoderConfig, encoder, "index.encoder"))
        if loaded.digest != settings.encoder:
            raise UserError(
                f"{folder}: index.encoder is not the encoder that this index was built with (digest {loaded.digest}, "
                f"built with {settings.encoder}); name that one with its settings, or build another index with this one"
            )
        return loaded

    def get() -> Any:
        with lock:
            return load()

    return get


def _vector_ranker(
    folder: Path, manifest: Manifest, store: Store, encoder: dict[str, Any], config: IndexConfig
) -> Ranker:
    settings = manifest.settings
    load = _encoder_loader(folder, settings, encoder)
    if settings.engine == "milvus":
        from ratchet.retrieval.backends.milvus import MilvusRanker

        return MilvusRanker(
            milvus_uri(folder, config.milvus), vector_space(manifest, store), lambda texts: load().encode_queries(texts)
        )
    from ratchet.retrieval.backends.dense import FILE, DenseRanker

    files = [shard.folder / FILE for shard in store.shards]
    gpu = encoder.get("device") != "cpu"
    longest = max((shard.manifest.top for shard in store.shards), default=1.0)
    return DenseRanker(files, lambda texts: load().encode_queries(texts), config.faiss_search, gpu, longest)


def milvus_uri(folder: Path, address: str) -> str:
    """Return where an index's vectors are: at the address of a Milvus server, or in a file of the index folder."""
    return address or str(folder / MILVUS_LITE)


def vector_space(manifest: Manifest, store: Store) -> Any:
    """Describe the vectors that a Milvus collection of this index holds."""
    from ratchet.retrieval.backends.milvus import VectorSpace

    return VectorSpace(
        digest=content_key(manifest.settings.encoder, store.digest),
        sparse=manifest.settings.kind == "sparse",
        dimension=max((shard.manifest.terms for shard in store.shards), default=0),
        chunks=len(store),
    )
