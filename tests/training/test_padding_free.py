"""training.padding_free: rows one after the other, and rows whose equal beginnings are
computed once, give the loss of one row at a time, and the same adapter."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Qwen2Config,
)

from ratchet.commands.train import train_round
from ratchet.core.config import LoraConfig, TrainingConfig
from ratchet.core.errors import UserError
from ratchet.training import packed_attention
from ratchet.training.batches import Collator, as_tree, prompt_tree
from ratchet.training.lora import add_lora, round_frozen_products
from ratchet.training.packed_attention import attend_to_end, flash_attention, pack_attention
from ratchet.training.trainer import RowTrainer
from tests.helpers.world import curve, make_run

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


def rows_with_shared_prompts() -> list[dict[str, Any]]:
    """Two roles with two questions each, a row that is another's prompt, equal rows, and one of nothing but a label."""
    draw = random.Random(1)
    words = lambda n: [draw.randrange(60) for _ in range(n)]  # noqa: E731
    role, other, question = words(12), words(9), words(7)
    prompts = [role + question, role + question, role + words(8), other + question, other + words(3), role, []]
    rows = []
    for prompt in prompts:
        answer = words(5)
        rows.append({"ids": [*prompt, *answer], "loss_mask": [0] * len(prompt) + [0, 1, 1, 0, 1]})
    return [*rows, rows[0]]


def test_a_tree_has_every_token_of_every_row_and_equal_prompts_once() -> None:
    rows = [[1, 2, 3, 4, 9], [1, 2, 3, 5, 9], [1, 2, 7], [8, 2], [1, 2, 3, 4, 9]]
    segments = prompt_tree(rows, [4, 4, 2, 1, 4])

    def above(number: int) -> list[int]:
        row, start, end, parent = segments[number]
        return [*(above(parent) if parent >= 0 else []), *rows[row][start:end]]

    leaves = set(range(len(segments))) - {segment.parent for segment in segments}
    assert sorted(above(leaf) for leaf in leaves) == sorted(rows)
    assert sum(end - start for _, start, end, _ in segments) == 2 + 1 + 1 + 1 + 1 + 2 + 1 + 2
    assert prompt_tree(rows, [0] * 5) == [(row, 0, len(ids), -1) for row, ids in enumerate(rows)]
    assert prompt_tree([], []) == []


def test_what_predicts_a_label_is_never_shared() -> None:
    """Two answers to one prompt: its last token predicts the first label of both."""
    rows = [{"ids": [5, 6, 7, last], "loss_mask": [0, 0, 0, 1]} for last in (1, 2)]
    inputs = as_tree(rows)
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 1, 7, 2]] and inputs["position_ids"].tolist() == [
        [0, 1, 2, 3, 2, 3]
    ]
    assert inputs["labels"].tolist() == [[-100, -100, -100, 1, -100, 2]]
    assert inputs["segments"].tolist() == [[0, 2, -1], [2, 4, 0], [4, 6, 0]]


@pytest.mark.numeric
@pytest.mark.parametrize("name", SHAPES)
def test_shared_prompts_give_the_loss_and_the_gradient_of_one_row_at_a_time(name: str) -> None:
    torch.manual_seed(0)
    rows = rows_with_shared_prompts()
    base = AutoModelForCausalLM.from_config(SHAPES[name], attn_implementation="sdpa")
    model = add_lora(base, LoraConfig(), 0)
    for part, weight in model.named_parameters():
        if "lora_B" in part:
            torch.nn.init.normal_(weight, std=0.1)

    def gradients(inputs: list[dict[str, Any]]) -> tuple[float, list[torch.Tensor]]:
        model.zero_grad()
        total = 0.0
        for one in inputs:
            logits, labels = RowTrainer.logits_of_labels(model, one)
            loss = torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="sum", ignore_index=-100)
            loss.backward()
            total += loss.item()
        return total, [w.grad.clone() for w in model.parameters() if w.grad is not None]

    alone, expected = gradients([Collator(0)([row]) for row in rows])
    pack_attention(model, on_gpu=False)
    inputs = Collator(0, padding_free=True, share_prompts=True)(rows)
    assert inputs["input_ids"].shape[1] < 0.7 * sum(len(row["ids"]) for row in rows)
    together, found = gradients([inputs])
    assert together == pytest.approx(alone, rel=1e-6)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(expected, found, strict=True))


@pytest.mark.numeric
@pytest.mark.parametrize("name", SHAPES)
def test_logits_of_a_long_row_with_short_ones_are_those_of_one_row_at_a_time(name: str) -> None:
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(SHAPES[name], attn_implementation="sdpa").eval()
    rows = rows_of([90, 3, 2, 17])
    with torch.no_grad():
        alone = torch.cat([base(torch.tensor([row["ids"]])).logits[0] for row in rows])
        model = add_lora(base, LoraConfig(), 0).eval()
        pack_attention(model, on_gpu=False)
        inputs = Collator(0, padding_free=True)(rows)
        together, labels = RowTrainer.logits_of_labels(model, inputs)
    learnt = torch.cat([torch.tensor([*row["loss_mask"][1:], 0], dtype=torch.bool) for row in rows])
    pairs = [pair for row in rows for pair in zip(row["ids"], row["loss_mask"], strict=True)]
    assert labels.tolist() == [[token for token, bit in pairs if bit]]
    assert torch.allclose(together[0], alone[learnt], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_training_without_padding_gives_the_curve_and_the_adapter_of_training_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, weights = [], []
    for name, free, shared in (("padded", False, False), ("free", True, False), ("shared", True, True)):
        monkeypatch.setattr(RowTrainer, "shares_prompts", shared)
        settings = {"padding_free": free, "gradient_checkpointing": free, "micro_batch": 4}
        _, config, folder = make_run(tmp_path / name, **settings)
        train_round(config, 1)
        logs.append(curve(folder))
        weights.append(load_file(folder.adapter / "adapter_model.safetensors"))
    for log, weight in zip(logs[1:], weights[1:], strict=True):
        assert logs[0] == [pytest.approx(line, rel=1e-4) for line in log]
        assert all(torch.allclose(weights[0][name], weight[name], atol=1e-5) for name in weights[0])


@pytest.mark.slow
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
    for shape, reason in ((Gemma2Config(**SMALL, head_dim=8), "capped logits"), (GptOssConfig(**SMALL), "sinks")):
        model = add_lora(AutoModelForCausalLM.from_config(shape), LoraConfig(), 0)
        with pytest.raises(UserError, match=rf"padding_free: a {shape.model_type} model has attention with {reason}"):
            pack_attention(model, on_gpu=False)
    with pytest.raises(ValueError, match="backend unsloth has an attention of its own"):
        TrainingConfig(padding_free=True, backend="unsloth")
    with pytest.raises(ValueError, match="objective: dpo needs logits, which backend unsloth does not give"):
        TrainingConfig(objective="dpo", backend="unsloth")


@pytest.mark.numeric
@pytest.mark.parametrize(("asked", "known", "window"), [(7, 7, None), (7, 31, None), (1, 20, None), (12, 31, 9)])
def test_attention_under_autocast_on_a_cpu_is_exact_attention_rounded(
    asked: int, known: int, window: int | None
) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, n, 16) for heads, n in ((6, asked), (2, known), (2, known)))
    weight = torch.randn(1, 6, asked, 16)

    def outcome(rounded: bool) -> list[torch.Tensor]:
        q, k, v = (part.clone().requires_grad_() for part in (query, key, value))
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            out = attend_to_end(q, k, v, 0.3, window)
        (out.float() * weight).sum().backward()
        return [out.float(), *(part.grad for part in (q, k, v) if part.grad is not None)]

    exact, rounded = outcome(False), outcome(True)
    assert len(exact) == len(rounded) == 4
    for one, other in zip(exact, rounded, strict=True):
        assert 0 < (one - other).norm() < 0.01 * one.norm()


@pytest.mark.numeric
def test_frozen_weights_kept_in_bfloat16_give_the_loss_and_the_gradients_of_autocast() -> None:
    def outcome(kept: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        shape = LlamaConfig(**SMALL, tie_word_embeddings=True)
        model = add_lora(AutoModelForCausalLM.from_config(shape, dtype=torch.float32), LoraConfig(), 0)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)
        if kept:
            round_frozen_products(model)
            assert model.get_base_model().model.embed_tokens.weight.dtype == torch.float32
        ids = torch.arange(24)[None] % 60
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return [loss.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]

    for one, other in zip(outcome(False), outcome(True), strict=True):
        assert torch.equal(one, other)


def test_flash_attention_is_chosen_before_the_trainer_moves_the_model_to_its_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(packed_attention, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(LlamaForCausalLM, "set_attn_implementation", lambda self, name: asked.append(name))
    for dtype, on_gpu in ((torch.bfloat16, True), (torch.bfloat16, False), (torch.float32, True)):
        base = LlamaForCausalLM(LlamaConfig(**SMALL)).to(dtype)
        pack_attention(add_lora(base, LoraConfig(), 0), on_gpu)
    assert asked == ["flash_attention_2", packed_attention.NAME, packed_attention.NAME]
