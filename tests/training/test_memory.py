"""The activations that the formula computes, against the tensors that torch saves; and what `auto` makes of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen2Config

from ratchet.core.config import LoraConfig
from ratchet.training.checkpointing import CHECKPOINTING
from ratchet.training.lora import add_lora, take_inputs_as_they_are
from ratchet.training.memory import Activations

TOKENS = 80


def saved_bytes(shape: Any, dtype: torch.dtype, checkpointing: bool = False) -> int:
    """Bytes of the different tensors, weights aside, that a forward pass through the layers saves for the backward
    pass."""
    model = add_lora(AutoModelForCausalLM.from_config(shape, dtype=dtype), LoraConfig(), 0).train()
    model.enable_input_require_grads()
    take_inputs_as_they_are(model)
    if checkpointing:
        model.gradient_checkpointing_enable(CHECKPOINTING)
    storages = {weight.untyped_storage().data_ptr(): 0 for weight in model.parameters()}
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        is_matrix_of_adapter = LoraConfig().r in tensor.shape and TOKENS not in tensor.shape
        if storage.data_ptr() not in storages and not is_matrix_of_adapter:
            kept.append(tensor)  # else its address would be used again
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        model.get_base_model().model(input_ids=torch.zeros((1, TOKENS), dtype=torch.long), use_cache=False)
    return sum(storages.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "hidden", "inner", "heads", "keys"), [(Qwen2Config, 96, 416, 6, 2), (LlamaConfig, 192, 256, 3, 3)]
)
def test_the_formula_is_within_a_tenth_of_what_torch_saves(
    kind: Any, hidden: int, inner: int, heads: int, keys: int, dtype: torch.dtype
) -> None:
    shape = kind(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=4, num_attention_heads=heads,
        num_key_value_heads=keys, vocab_size=60,
    )  # fmt: skip
    computed = Activations.of(shape, LoraConfig().r, dtype, tiled_head=False)
    assert computed is not None
    there = saved_bytes(shape, dtype)
    assert computed.layers * TOKENS * computed.saved == pytest.approx(there, rel=0.1)
    # The total is what is saved and, at the end of the forward pass, one layer's gradients.
    assert computed.total(TOKENS, 1, checkpointing=False) - TOKENS * computed.passing == pytest.approx(there, rel=0.1)


def test_a_model_of_7b_at_16000_tokens_by_hand() -> None:
    shape = Qwen2Config(
        hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        intermediate_size=18944, vocab_size=152064,
    )  # fmt: skip
    computed = Activations.of(shape, 16, torch.bfloat16, tiled_head=True)
    assert computed is not None
    assert computed.saved == 2 * (4 * 18944 + 4 * 3584 + 2 * 3584 + 2 * 512 + 7 * 16) + 4 * 28 + 8 + 4 * 3584
    kept = computed.total(16_000, 2_000, checkpointing=False)
    again = computed.total(16_000, 2_000, checkpointing=True)
    assert 80e9 < kept < 141e9 and again < 15e9, "with checkpointing it fits a GPU of 80 GB, without one of 141 GB"


def test_liger_keeps_less_as_measured_on_an_h200() -> None:
    """104.3 GiB without its kernels and 82.6 with them (docs/results/engine.md)."""
    shape = Qwen2Config(
        hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        intermediate_size=18944, vocab_size=152064,
    )  # fmt: skip
    plain, fused = (Activations.of(shape, 16, torch.bfloat16, tiled_head=True, fused=fused) for fused in (False, True))
    assert plain is not None and fused is not None
    assert 28 * 16_000 * (plain.saved - fused.saved) / 2**30 == pytest.approx(104.27 - 82.55, rel=0.01)


def test_checkpointing_computes_attention_once_and_everything_else_again() -> None:
    calls: Counter[str] = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls[str(function).split(".")[1]] += 1
            return function(*args, **(kwargs or {}))

    shape = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=60,
    )  # fmt: skip
    model = add_lora(AutoModelForCausalLM.from_config(shape), LoraConfig(), 0).train()
    model.gradient_checkpointing_enable(CHECKPOINTING)
    model.enable_input_require_grads()
    with Count():
        model(input_ids=torch.zeros((1, 9), dtype=torch.long), use_cache=False).logits.sum().backward()
    assert calls["_scaled_dot_product_flash_attention_for_cpu"] == 3 and calls["silu"] == 6


def test_shapes_that_the_formula_does_not_describe_are_named() -> None:
    assert Activations.of(MixtralConfig(), 16, torch.bfloat16, tiled_head=True) is None
