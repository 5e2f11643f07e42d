"""training.padding_free: rows one after the other give the loss of one row at a time, and the same adapter."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, MistralConfig, Qwen2Config
from trl import SFTTrainer

from ratchet.config import LoraConfig, TrainingConfig
from ratchet.errors import UserError
from ratchet.files import read_log
from tests.helpers.world import make_run, make_trainer, trl_head_on_cpu
from training import recipe
from training.collator import Collator
from training.lora import add_lora
from training.packed_attention import flash_attention, pack_attention
from training.trainer import RowTrainer

SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
SHAPES = {
    "llama": LlamaConfig(**SMALL),
    "qwen2": Qwen2Config(**SMALL),
    "window": MistralConfig(**SMALL, sliding_window=9),
}


def rows_of(lengths: list[int]) -> list[dict[str, Any]]:
    draw = random.Random(0)
    return [
        {"ids": [draw.randrange(60) for _ in range(n)], "loss_mask": [0, *(draw.randrange(2) for _ in range(n - 2)), 1]}
        for n in lengths
    ]


@pytest.mark.parametrize("name", SHAPES)
def test_logits_of_a_long_row_with_short_ones_are_those_of_one_row_at_a_time(name: str) -> None:
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(SHAPES[name], attn_implementation="sdpa").eval()
    rows = rows_of([90, 3, 2, 17])
    with torch.no_grad():
        alone = torch.cat([base(torch.tensor([row["ids"]])).logits[0] for row in rows])
        model = add_lora(base, LoraConfig(), 0).eval()
        pack_attention(model)
        inputs = Collator(0, padding_free=True)(rows)
        together, labels = RowTrainer.logits_of_labels(model, inputs)
    learnt = torch.cat([torch.tensor([*row["loss_mask"][1:], 0], dtype=torch.bool) for row in rows])
    pairs = [pair for row in rows for pair in zip(row["ids"], row["loss_mask"], strict=True)]
    assert labels.tolist() == [[token for token, bit in pairs if bit]]
    assert torch.allclose(together[0], alone[learnt], rtol=1e-6, atol=1e-6)


@trl_head_on_cpu
def test_the_loss_is_that_of_one_row_at_a_time_to_six_digits(tmp_path: Path) -> None:
    _, config, folder = make_run(tmp_path, padding_free=True, micro_batch=4)
    trainer, table = make_trainer(config, folder, tmp_path)
    rows = table.slice(0, 4).to_pylist()
    labels = sum(sum(row["loss_mask"]) for row in rows)
    for compute in (RowTrainer.compute_loss, SFTTrainer.compute_loss):  # on a GPU it is TRL's
        together, *alone = (
            compute(trainer, trainer.model, trainer.data_collator(some), num_items_in_batch=torch.tensor(labels)).item()
            for some in (rows, *([row] for row in rows))
        )
        assert together == pytest.approx(sum(alone), rel=1e-6)
    assert trainer.tokens == 2 * sum(len(row["ids"]) for row in rows)


def test_training_without_padding_gives_the_curve_and_the_adapter_of_training_with_it(tmp_path: Path) -> None:
    logs, weights = [], []
    for name, padding_free in (("padded", False), ("free", True)):
        _, config, folder = make_run(tmp_path / name, padding_free=padding_free, gradient_checkpointing=padding_free)
        recipe.train(config, 1)
        lines = read_log(folder.training / "log.jsonl")
        logs.append([{key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines])
        weights.append(load_file(folder.adapter / "adapter_model.safetensors"))
    assert logs[0] == [pytest.approx(line, rel=1e-4) for line in logs[1]]
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-5) for name in weights[0])


def test_the_gpu_s_attention_takes_and_gives_these_shapes() -> None:
    """On torch's own description of the kernel; what it computes only a GPU can show (`make gpu-check`)."""
    query, key = (
        torch.empty((1, heads, 20, 16), dtype=torch.bfloat16, device="meta", requires_grad=True) for heads in (4, 2)
    )
    starts = torch.tensor([0, 15, 20], dtype=torch.int32, device="meta")
    for window in (None, 9):
        found = flash_attention(query, key, key, starts, 15, 0.25, window)
        assert found.shape == (1, 4, 20, 16) and found.dtype == torch.bfloat16


def test_what_cannot_go_without_padding_is_refused() -> None:
    shape = Gemma2Config(**SMALL, head_dim=8)
    model = add_lora(AutoModelForCausalLM.from_config(shape), LoraConfig(), 0)
    with pytest.raises(UserError, match=r"padding_free: a gemma2 model has attention with capped logits"):
        pack_attention(model)
    with pytest.raises(ValueError, match="backend unsloth has an attention of its own"):
        TrainingConfig(padding_free=True, backend="unsloth")
