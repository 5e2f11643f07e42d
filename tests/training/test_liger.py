"""training.liger: what is replaced in a model, and what is said where that cannot be. The kernels need a GPU."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config, StableLmConfig
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2

from ratchet.config import LoraConfig, TrainingConfig
from ratchet.errors import UserError
from training.liger import fuse_layers
from training.lora import add_lora

SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def learner(shape: PreTrainedConfig) -> Any:
    return add_lora(AutoModelForCausalLM.from_config(shape), LoraConfig(), 0)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [LlamaConfig(**SMALL), Qwen2Config(**SMALL)], ids=["llama", "qwen2"])
def test_norms_and_mlps_are_liger_s_and_the_head_is_not(
    monkeypatch: pytest.MonkeyPatch, shape: PreTrainedConfig
) -> None:
    pytest.importorskip("liger_kernel")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for module in (modeling_llama, modeling_qwen2):  # Liger replaces what later models of the process are made of
        for name, value in list(vars(module).items()):
            monkeypatch.setattr(module, name, value)
    model = learner(shape)
    base = model.get_base_model()
    forward = base.forward
    fuse_layers(model)
    layer = base.model.layers[1]
    for part in (base.model.norm, layer.input_layernorm, layer.post_attention_layernorm, layer.mlp):
        assert "liger" in part.forward.__module__
    assert base.forward == forward and "liger" not in type(base.lm_head).__module__
    assert any("lora_A" in name for name, _ in layer.mlp.named_parameters())


def test_where_it_cannot_run_one_line_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    model = learner(LlamaConfig(**SMALL))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"need a GPU, and training has none; set training\.liger=false"):
        fuse_layers(model)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.monkey_patch", None)
    with pytest.raises(UserError, match=r"cannot import liger_kernel .*pip install '\.\[liger\]'"):
        fuse_layers(model)
    with pytest.raises(ValueError, match="backend unsloth has kernels of its own"):
        TrainingConfig(liger=True, backend="unsloth")


def test_other_architectures_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("liger_kernel")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match="Liger has no layers for stablelm models"):
        fuse_layers(learner(StableLmConfig(**SMALL)))
