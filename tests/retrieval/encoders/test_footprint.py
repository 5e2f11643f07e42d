"""The GPU memory of encoders: those of the config that are on this machine and may run on a GPU."""

from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import Config
from ratchet.retrieval.footprint import WORK_BYTES, encoder_memory
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


def test_what_is_on_the_cpu_elsewhere_or_not_here_takes_nothing(tmp_path: Path) -> None:
    path = save_shape(tmp_path / "lion", LION)
    assert sizes({"kind": "sparse", "encoder": {"path": path, "device": "cpu"}}) == {}
    assert sizes({"kind": "sparse", "encoder": {"path": str(tmp_path / "gone")}}) == {}
    assert sizes({"url": "http://127.0.0.1:1", "kind": "sparse", "encoder": {"path": path}}) == {}
    assert sizes({}, {"path": "some/model", "url": "http://127.0.0.1:1/v1"}) == {}
