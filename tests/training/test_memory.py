"""The memory of a training step: by hand on real models' shapes, and against what a step allocates."""

import weakref
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen2Config

from ratchet.core.config import LoraConfig
from ratchet.inference.footprint import Footprint, footprint
from ratchet.training.lora import add_lora, take_inputs_as_they_are
from ratchet.training.memory import Activations, max_tokens, training_memory
from ratchet.training.trainer import CHECKPOINTING
from tests.helpers.model_shapes import FALCON3_10B, QWEN25_7B, QWEN25_14B, save_shape


def activations(shape: Any, dtype: torch.dtype = torch.bfloat16, **form: bool) -> Activations:
    found = Activations.of(shape, 16, dtype, **{"tiled_head": True, **form})
    assert found is not None
    return found


def sizes_of(folder: Path, shape: dict[str, Any]) -> tuple[Footprint, Activations]:
    path = save_shape(folder, shape)
    return footprint(path, None, "bfloat16"), activations(AutoConfig.from_pretrained(path).get_text_config())


def test_shapes_that_the_formula_does_not_describe_have_none() -> None:
    assert Activations.of(MixtralConfig(), 16, torch.bfloat16, tiled_head=True) is None


def test_training_qwen_7b_by_hand(tmp_path: Path) -> None:
    """The paper's: LoRA of rank 16, one row of 16,000 tokens at a time, bfloat16."""
    size, parts = sizes_of(tmp_path, QWEN25_7B)
    step = training_memory(size, parts, 16_000, 2_000)
    assert step.weights == 7_615_616_512 * 2
    # A layer's inputs and outputs: q and o 7168 each, k and v 4096 each, gate, up and down 22528 each.
    assert step.adapter == 16 * 16 * 28 * (2 * 7168 + 2 * 4096 + 3 * 22528)
    saved = 2 * (4 * 18944 + 4 * 3584 + 2 * 3584 + 2 * 512 + 7 * 16) + 4 * 28 + 8 + 4 * 3584
    assert parts.saved == saved and parts.head(2000) == 2 * 2000 * 32_768 + 2000 * 3584 * 6
    one_layer = 16_000 * (saved + 2 * 2 * 18944 + 2 * 18944 + 8 * 3584)
    assert step.activations == 28 * 16_000 * ((3584 + 3584) * 2 + 4 * 28) + one_layer
    assert step.total == step.weights + step.adapter + step.activations == pytest.approx(28.0e9, rel=0.01)
    rounded = training_memory(size, parts, 16_000, 2_000, four_bit=True)
    assert step.weights - rounded.weights == pytest.approx(size.linear_parameters * (2 - 4.25 / 8))
    assert 80e9 < training_memory(size, parts, 16_000, 2_000, checkpointing=False).activations < 141e9


def test_what_fits_a_gpu_and_what_sharding_saves(tmp_path: Path) -> None:
    fits = {}
    for name, shape in (("7b", QWEN25_7B), ("14b", QWEN25_14B), ("10b", FALCON3_10B)):
        step = partial(training_memory, *sizes_of(tmp_path / name, shape))
        fits[name] = most = max_tokens(step, 80e9)
        assert step(most).total <= 80e9 < step(most + 1).total
        assert max_tokens(step, 10e9) == 0
        sharded, alone = step(16_000, shards=8), step(16_000)
        # Two layers are whole at a time, and the output head all the time.
        head = 2 * shape["vocab_size"] * shape["hidden_size"]
        layers = 2 * alone.weights // shape["num_hidden_layers"]
        assert sharded.weights == alone.weights // 8 + layers + head and sharded.activations == alone.activations
    assert fits["7b"] > fits["10b"] > fits["14b"] > 16_000


class Peak(TorchDispatchMode):
    """The most bytes that all tensors had together."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: Any = weakref.WeakSet()

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self.known:
            self.known.add(storage)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.remove, storage.nbytes())

    def remove(self, size: int) -> None:
        self.now -= size

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return out


def allocated(config: Qwen2Config, dtype: torch.dtype, tokens: int, learnt: int, checkpointing: bool) -> int:
    """The peak of two training steps, as training/trainer.py computes them on a CPU."""
    model = add_lora(AutoModelForCausalLM.from_config(config, dtype=dtype), LoraConfig(), 0).train()
    take_inputs_as_they_are(model)
    if checkpointing:
        model.gradient_checkpointing_enable(CHECKPOINTING)
        model.enable_input_require_grads()
    optimiser = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    ids = torch.zeros((1, tokens), dtype=torch.long)
    positions = torch.arange(tokens - learnt, tokens)
    peak = Peak()
    for weight in model.parameters():
        peak.add(weight.data)
    with peak:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                logits = model(input_ids=ids, use_cache=False, logits_to_keep=positions).logits
                loss = cross_entropy(logits.flatten(0, 1).float(), ids[0, :learnt], reduction="sum")
            del logits
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    return peak.most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "vocabulary", "learnt", "dtype", "checkpointing"),
    [
        (1024, 500, 50, "float32", True),
        (1024, 500, 50, "bfloat16", True),
        (512, 500, 50, "bfloat16", False),
        (512, 20_000, 200, "float32", True),
    ],
)
def test_the_formula_against_what_a_step_allocates(
    inner: int, vocabulary: int, learnt: int, dtype: str, checkpointing: bool, tmp_path: Path
) -> None:
    config = Qwen2Config(
        hidden_size=256,
        intermediate_size=inner,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        tie_word_embeddings=False,
    )
    config.save_pretrained(tmp_path)
    kind = getattr(torch, dtype)
    size, parts = footprint(str(tmp_path), None, dtype), activations(config, kind, tiled_head=False)
    memory = training_memory(size, parts, 400, learnt, checkpointing=checkpointing)
    there = allocated(config, kind, 400, learnt, checkpointing)
    assert 0.95 < memory.total / there < 1.2


def test_liger_keeps_less_as_measured_on_an_h200() -> None:
    """104.3 GiB without its kernels and 82.6 with them (docs/results/engine.md)."""
    shape = Qwen2Config(
        hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        intermediate_size=18944, vocab_size=152064,
    )  # fmt: skip
    plain, fused = (activations(shape, fused=fused) for fused in (False, True))
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
