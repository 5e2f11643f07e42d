"""What searching takes, computed from files: the GPU memory of encoders, which share the GPU with servers, and the main
memory and time of a dense index."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.core.config import DEFAULT_EMBEDDER, Config, EncoderConfig, IndexConfig, is_missing
from ratchet.core.errors import UserError
from ratchet.core.parsing import parse
from ratchet.inference.footprint import DTYPE_BYTES, read_shape

WORK_BYTES = 1_000_000_000
"""The working memory of one encoder: a layer of 1B parameters (8,192 wide inside) on 16,384 tokens takes 0.8 GB, and
the logits of 1,024 tokens over 128,000 words 0.26 GB."""


@dataclass(frozen=True)
class EncoderMemory:
    """The GPU memory of one encoder, in the process that searches."""

    key: str
    """The config's key, and the path."""
    device: str
    """As the config names it: auto, cuda or cuda:1."""
    size: int
    """Bytes; 0 where the model's files are not on this machine, so that it is not known."""


def encoder_memory(config: Config) -> list[EncoderMemory]:
    """Return what a command of the config may load on a GPU besides language models."""
    index, encoders = config.index, list[tuple[str, bool, EncoderConfig]]()
    for name, part in () if is_missing(index) else index.built.items():
        key = f"index.parts.{name}.encoder" if name else "index.encoder"
        settings = _built_with(part) | (part.encoder.model_dump(exclude_unset=True) if part.encoder else {})
        with suppress(UserError):  # an index of another version, which no command opens
            if part.kind != "bm25" and settings.get("url") is None:
                encoders.append((key, part.kind == "sparse", parse(EncoderConfig, settings, key)))
    named = () if is_missing(index) else index.parts.items()
    for key, one in (("index", index), *((f"index.parts.{name}", part) for name, part in named)):
        if not is_missing(one) and (rerank := one.rerank) is not None and rerank.url is None:
            model = EncoderConfig(path=rerank.model, revision=rerank.revision, device=rerank.device, dtype=rerank.dtype)
            encoders.append((f"{key}.rerank", False, model))
    if config.embedder.url is None:
        encoders.append(("embedder", False, config.embedder))
    return [
        EncoderMemory(f"{key} {encoder.path}", encoder.device, size)
        for key, sparse, encoder in encoders
        if encoder.device != "cpu" and encoder.path
        # Where the default's package is not installed, nothing can load it.
        if (size := _bytes(encoder, sparse)) or encoder.path != DEFAULT_EMBEDDER.path
    ]


def _bytes(config: EncoderConfig, sparse: bool) -> int:
    """The memory of an encoder, with a vocabulary head where there is one; 0 where its config.json is not here."""
    shape, parameters = encoder_shape(config)
    if shape is not None and sparse and not shape.tie_word_embeddings:
        parameters += shape.vocab_size * shape.hidden_size
    weight = DTYPE_BYTES[config.dtype or ("bfloat16" if sparse else "float32")]
    return parameters * weight + WORK_BYTES if parameters else 0


def _built_with(index: IndexConfig) -> dict[str, Any]:
    from ratchet.retrieval.layout import read_manifest

    try:
        return read_manifest(Path(index.path)).encoder
    except UserError:
        return {}


def encoder_shape(config: EncoderConfig) -> tuple[Any, int]:
    """Return (an encoder's configuration, its number of parameters); (None, 0) where it is not known."""
    import torch
    from transformers import AutoModel

    from ratchet.retrieval.encoders.dense import PACKAGED, model_folder

    try:
        folder = str(model_folder(EncoderConfig(path=config.path))) if config.path in PACKAGED else config.path
        shape = read_shape(folder, config.revision)
        with torch.device("meta"):
            model = AutoModel.from_config(shape, trust_remote_code=False)
    except Exception:  # the readers of damaged files raise anything; who loads the model says what is wrong with it
        return None, 0
    return shape, sum(weight.numel() for weight in model.parameters())


READ_PER_SECOND, LOOKED_UP_PER_SECOND = 1e10, 2.2e9
"""Bytes of vectors, and of a product quantizer's codes, that one core compares with a query in a second, as main memory
gives them and as measured (`benchmarks.dense`, whose vectors are in caches: 2.1e10 of `Flat`)."""


@dataclass(frozen=True)
class DenseNeeds:
    """What an index of faiss needs, by its `index_factory` string."""

    size: float
    """Bytes of main memory."""
    read: float
    """Bytes of vectors, codes and centroids that one query is compared with."""
    looked_up: float = 0.0
    """Those of them that are codes of a product quantizer."""

    @property
    def milliseconds(self) -> float:
        """Time of one query on one core."""
        return 1000 * ((self.read - self.looked_up) / READ_PER_SECOND + self.looked_up / LOOKED_UP_PER_SECOND)


def dense_needs(dimension: int, vectors: float, shards: int, factory: str, parameters: str = "") -> DenseNeeds:
    """Compute the needs of vectors in so many shards. `parameters`: faiss's for a search. Raises UserError.

    A graph's search looks at the neighbours of `efSearch` vectors in each shard, inverted lists at the centroids and
    `nprobe` lists of each, and anything else at all codes.
    """
    import faiss

    from ratchet.retrieval.backends.dense import new_index

    index = new_index(dimension, factory)
    if parameters and not isinstance(index, faiss.IndexFlat):
        space: Any = faiss.ParameterSpace()
        space.set_index_parameters(index, parameters)
    if hasattr(index, "hnsw"):
        code, links = faiss.downcast_index(index.storage).sa_code_size(), index.hnsw.nb_neighbors(0)
        # Above the first level a vector has M / (M - 1) links; 12 bytes are its level and where its links begin.
        each = code + 4 * (links + links / 2 / (links / 2 - 1)) + 12
        seen = min(shards * index.hnsw.efSearch * links, vectors)
        return DenseNeeds(vectors * each, seen * code)
    try:
        lists: Any = faiss.downcast_index(faiss.extract_index_ivf(index))
    except RuntimeError:
        lists = None
    if lists is None:
        size = vectors * float(index.sa_code_size())
        return DenseNeeds(size, size)
    centroids = 4.0 * shards * lists.nlist * dimension
    codes, pq = vectors * lists.code_size, getattr(lists, "pq", None)
    codebooks = 0.0 if pq is None else 4.0 * shards * pq.ksub * lists.d
    probed = codes * min(1, lists.nprobe / lists.nlist)
    size = codes + 8 * vectors + centroids + codebooks
    return DenseNeeds(size, centroids + probed, 0.0 if pq is None else probed)
