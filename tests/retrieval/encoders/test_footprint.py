"""The GPU memory of encoders: those of the config that are on this machine and may run on a GPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.core.config import Config, EncoderConfig
from ratchet.retrieval.footprint import WORK_BYTES, dense_needs, encoder_memory, encoder_shape
from tests.helpers.model_shapes import save_shape

LION: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128_256,
    "tie_word_embeddings": True,
}
"""Llama-3.2-1B, of which Lion-SP-1B is made."""


def sizes(index: dict[str, Any], embedder: dict[str, Any] | None = None) -> dict[str, float]:
    """Bytes by the config's key."""
    config = Config.model_validate(
        {
            "run": "unused",
            "models": {"agent": {"path": "m"}},
            "index": {"path": "unused", **index},
            "embedder": {"path": "elsewhere/model", "device": "cpu"} if embedder is None else embedder,
            "questions": {split: {"path": "unused"} for split in ("train", "dev", "test")},
        }
    )
    return {one.key.split()[0]: one.size for one in encoder_memory(config)}


def test_a_sparse_encoder_takes_its_weights_and_room_to_compute(tmp_path: Path) -> None:
    path = save_shape(tmp_path / "lion", LION)
    found = sizes({"kind": "sparse", "encoder": {"path": path}})
    # Lion-SP-1B has 1.236 billion parameters, 2 bytes each.
    assert found == {"index.encoder": pytest.approx(1.236e9 * 2 + WORK_BYTES, rel=0.001)}
    untied = save_shape(tmp_path / "untied", LION | {"tie_word_embeddings": False})
    more = sizes({"kind": "sparse", "encoder": {"path": untied}})["index.encoder"] - found["index.encoder"]
    assert more == 128_256 * 2048 * 2, "the output layer"


def test_what_is_on_the_cpu_or_elsewhere_takes_nothing_and_what_is_not_here_is_not_known(tmp_path: Path) -> None:
    path = save_shape(tmp_path / "lion", LION)
    assert sizes({"kind": "sparse", "encoder": {"path": path, "device": "cpu"}}) == {}
    assert sizes({"kind": "sparse", "encoder": {"path": str(tmp_path / "gone")}}) == {"index.encoder": 0}
    assert sizes({"url": "http://127.0.0.1:1", "kind": "sparse", "encoder": {"path": path}}) == {}
    assert sizes({}, {"path": "some/model", "url": "http://127.0.0.1:1/v1"}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["Flat", "HNSW32", "IVF64,Flat", "IVF64,PQ8x4", "SQ8"])
def test_the_memory_of_a_dense_index_is_what_faiss_writes(factory: str) -> None:
    faiss = pytest.importorskip("faiss")
    vectors = np.random.default_rng(0).standard_normal((3000, 32)).astype(np.float32)
    index = faiss.index_factory(32, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    need = dense_needs(32, 3000, 1, factory)
    assert need.size == pytest.approx(len(faiss.serialize_index(index)), rel=0.02)


def test_a_query_reads_the_lists_that_it_probes_of_every_shard() -> None:
    pytest.importorskip("faiss")
    few, many = (dense_needs(64, 1e6, shards, "IVF1024,PQ16", "nprobe=64").read for shards in (1, 10))
    centroids = 1024 * 64 * 4
    assert few == centroids + 16e6 / 16 and many == 10 * centroids + 16e6 / 16
    assert dense_needs(64, 1e6, 1, "Flat").read == 64 * 4 * 1e6


def test_the_shape_of_a_known_encoder_needs_no_files() -> None:
    shape, parameters = encoder_shape(EncoderConfig(path="intfloat/e5-base-v2"))
    assert shape.hidden_size == 768 and parameters == pytest.approx(109.5e6, rel=0.001), "as its model card says"
    assert encoder_shape(EncoderConfig(path="/gone")) == (None, 0)


def test_a_reranker_of_this_process_counts(tmp_path: Path) -> None:
    path = save_shape(tmp_path / "lion", LION)
    found = sizes({"rerank": {"model": path}})
    assert found == {"index.rerank": pytest.approx(1.236e9 * 4 + WORK_BYTES, rel=0.001)}
    assert sizes({"rerank": {"model": path, "url": "http://127.0.0.1:1/v1"}}) == {}
    parts = {"a": {}, "b": {"kind": "sparse", "encoder": {"path": path}}}
    assert list(sizes({"kind": "fused", "parts": parts})) == ["index.parts.b.encoder"]
    parts["a"] = {"rerank": {"model": path}}
    assert list(sizes({"kind": "fused", "parts": parts})) == ["index.parts.b.encoder", "index.parts.a.rerank"]
