"""Memory of a model, against numbers that its makers publish and against the real model."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from ratchet.core.errors import UserError
from ratchet.inference.footprint import PUBLISHED, TABLE, footprint
from tests.helpers.model_shapes import QWEN25_7B, save_shape

MOE = "Qwen/Qwen3-30B-A3B"

COUNTS = {
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "google/gemma-3-1b-it": 999_885_952,
    "google/gemma-3-4b-it": 4_300_079_472,
    "google/gemma-3-12b-it": 12_187_325_040,
    "google/gemma-3-27b-it": 27_432_406_640,
    "mistralai/Mistral-7B-Instruct-v0.2": 7_241_732_096,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "openai/gpt-oss-20b": 20_914_757_184,
    "tiiuae/Falcon3-10B-Instruct": 10_305_653_760,
}
"""Parameters that the hub states of each model's files; other parts of a multimodal model included."""


@pytest.mark.slow
def test_every_shape_has_the_published_number_of_parameters() -> None:
    for name in (names.split()[0] for names, *_ in TABLE):
        size, shape = footprint(name, None, "float32"), PUBLISHED[name]
        text = shape.get("text_config", shape)
        if "quantization_config" not in shape:
            assert size.weight_bytes == 4 * COUNTS[name], name
        if "text_config" not in shape:
            assert size.parameters == COUNTS[name], name
        heads = text["num_key_value_heads"] * text["head_dim"]
        assert size.kv_bytes_per_token == 4 * 2 * text["num_hidden_layers"] * heads, name


def test_weights_in_four_bits_and_experts() -> None:
    oss, moe, dense = (footprint(name, None, "bfloat16") for name in ("openai/gpt-oss-20b", MOE, "Qwen/Qwen3-8B"))
    # 3.6 and 3.3 of them billion, their makers say: with the embedding, which is none of them at OpenAI
    assert (oss.active_parameters, moe.active_parameters) == (
        pytest.approx(4.2e9, rel=0.01),
        pytest.approx(3.35e9, rel=0.01),
    )
    assert oss.weight_bytes == pytest.approx(13.8e9, rel=0.03)  # of its files
    assert dense.active_parameters == dense.parameters
    rest = dense.parameters - dense.linear_parameters
    assert dense.bytes_with("four_bit", "bfloat16") == int(dense.linear_parameters * 4.25 / 8) + 2 * rest
    assert dense.bytes_with("fp8", "bfloat16") == dense.linear_parameters + 2 * rest


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
