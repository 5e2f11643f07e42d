"""The model to train: the base model, frozen, with one LoRA adapter for all trainable roles (Salemi et al. 2025,
arXiv 2506.10844, appendix D.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load
from transformers import AutoModelForCausalLM

from inference.adapters import read_adapter
from ratchet.config import LoraConfig, ModelConfig
from ratchet.errors import UserError, first_line

SCALE = ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
"""What an adapter's weights are multiplied by, or mean, beyond their shapes."""


def compute_type(model: ModelConfig) -> torch.dtype:
    """The precision of the frozen weights: the config's on a GPU that has it, float32 on a CPU.

    A CPU without AVX512 runs bfloat16 six times slower than float32. The adapter itself is always float32.
    """
    if on_cpu(model):
        return torch.float32
    wanted: torch.dtype = getattr(torch, model.dtype)
    return torch.float32 if wanted == torch.bfloat16 and not torch.cuda.is_bf16_supported() else wanted


def on_cpu(model: ModelConfig) -> bool:
    """Whether the model is trained on the CPU."""
    return model.device == "cpu" or not torch.cuda.is_available()


def load_model(model: ModelConfig) -> Any:
    """The base model in its compute type; never runs code that comes with a model."""
    try:
        return AutoModelForCausalLM.from_pretrained(
            model.path, revision=model.revision, dtype=compute_type(model), trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{model.path}: cannot load the model: {first_line(error)}") from error


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


def start_from_adapter(model: Any, folder: Path) -> None:
    """Start the PeftModel's adapter from the one in `folder`. UserError where it is damaged, or of another shape."""
    adapter = read_adapter(folder)
    theirs, weights = adapter.config, load(adapter.weights)
    mine = model.peft_config[model.active_adapter].to_dict()
    other = [
        f"{key} {theirs.get(key)} there, {mine[key]} here"
        for key in SCALE
        if (theirs.get(key) or 0) != (mine[key] or 0)
    ]
    wanted = get_peft_model_state_dict(model)
    other += [f"no weights for {name}" for name in sorted(wanted.keys() - weights.keys())]
    other += [f"weights for {name}, which is not trained here" for name in sorted(weights.keys() - wanted.keys())]
    other += [
        f"{name} is {tuple(weights[name].shape)} there, {tuple(wanted[name].shape)} here"
        for name in sorted(wanted.keys() & weights.keys())
        if weights[name].shape != wanted[name].shape
    ]
    if other:
        raise UserError(
            f"{folder}: this adapter has another shape than training.lora: {'; '.join(other[:3])}"
            + (f"; and {len(other) - 3} more" if len(other) > 3 else "")
            + ". Continue its training with its own settings, or start from the base model (rounds.start=base)"
        )
    set_peft_model_state_dict(model, weights)
