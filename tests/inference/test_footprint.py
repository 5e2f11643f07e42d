"""Memory of a model, against numbers that its makers publish and against the real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from inference.footprint import footprint
from ratchet.errors import UserError
from tests.helpers.model_shapes import QWEN25_7B, save_shape


@pytest.mark.parametrize(
    ("name", "parameters", "kv_bytes"),
    [
        # 7.61 and 14.8 billion on their model cards; keys and values: 2 x layers x heads x width x 2 bytes
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512, 2 * 28 * 4 * 128 * 2),
        ("Qwen/Qwen2.5-14B-Instruct", 14_770_033_664, 2 * 48 * 8 * 128 * 2),
        ("tiiuae/Falcon3-10B-Instruct", 10_305_653_760, 2 * 40 * 4 * 256 * 2),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248, 2 * 32 * 8 * 128 * 2),
        ("Qwen/Qwen3-4B", 4_022_468_096, 2 * 36 * 8 * 128 * 2),
        ("Qwen/Qwen3-8B", 8_190_735_360, 2 * 36 * 8 * 128 * 2),
        ("Qwen/Qwen3-14B", 14_768_307_200, 2 * 40 * 8 * 128 * 2),
    ],
)
def test_shapes_of_real_models(name: str, parameters: int, kv_bytes: int) -> None:
    found = footprint(name, None, "bfloat16")
    assert (found.parameters, found.weight_bytes) == (parameters, 2 * parameters)
    assert found.kv_bytes_per_token == kv_bytes
    if name.startswith("tiiuae"):
        whole = footprint(name, None, "float32")
        assert (whole.weight_bytes, whole.kv_bytes_per_token) == (4 * parameters, 2 * kv_bytes)


def test_the_lora_of_qwen_7b_by_hand(tmp_path: Path) -> None:
    # q and o: 3584 + 3584; k and v: 3584 + 512; gate, up and down: 3584 + 18944
    layer = 2 * 7168 + 2 * 4096 + 3 * 22528
    found = footprint(save_shape(tmp_path / "model", QWEN25_7B), None, "bfloat16")
    assert found.lora_parameters(16) == 16 * 28 * layer == 40_370_176


@pytest.mark.model
def test_the_real_model_has_as_many(smollm2: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    found = footprint(str(smollm2), None, "bfloat16")
    assert found.parameters == sum(weight.numel() for weight in model.parameters())
    # less the file's header of names
    assert 0 <= (smollm2 / "model.safetensors").stat().st_size - found.weight_bytes < 100_000


def test_a_folder_without_a_usable_config(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot tell its size"):
        footprint(str(tmp_path), None, "bfloat16")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    with pytest.raises(UserError, match=r"(?s)cannot tell its size.*nonesuch"):
        footprint(str(tmp_path), None, "bfloat16")
