"""The model to train: the base model, frozen, with one LoRA adapter for all trainable roles (seed paper 002, D.2)."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import set_seed
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model
from transformers import AutoModelForCausalLM

from ratchet.config import LoraConfig, ModelConfig
from ratchet.errors import UserError


def compute_type(model: ModelConfig) -> torch.dtype:
    """The precision of the frozen weights: the config's on a GPU that has it, float32 on a CPU.

    A CPU without AVX512 runs bfloat16 six times slower than float32. The adapter itself is always float32.
    """
    if on_cpu(model):
        return torch.float32
    wanted: torch.dtype = getattr(torch, model.dtype)
    return torch.float32 if wanted == torch.bfloat16 and not torch.cuda.is_bf16_supported() else wanted


def on_cpu(model: ModelConfig) -> bool:
    return model.device == "cpu" or not torch.cuda.is_available()


def load_model(model: ModelConfig) -> Any:
    """The base model in its compute type; never runs code that comes with a model."""
    try:
        return AutoModelForCausalLM.from_pretrained(model.path, revision=model.revision, dtype=compute_type(model))
    except (OSError, ValueError) as error:
        raise UserError(f"{model.path}: cannot load the model: {str(error).splitlines()[0]}") from error


def target_modules(lora: LoraConfig) -> str | list[str]:
    """'all-linear' (every linear layer but the head), or names separated by commas."""
    return lora.targets if lora.targets == "all-linear" else [name.strip() for name in lora.targets.split(",")]


def add_lora(model: Any, lora: LoraConfig, seed: int) -> Any:
    """Wrap `model` in a PeftModel. The adapter starts as no change at all (B = 0); A is drawn from `seed`."""
    set_seed(seed)
    settings = PeftLoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=target_modules(lora),
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(model, settings)
    except ValueError as error:
        raise UserError(f"training.lora.targets={lora.targets!r}: {error}") from error
