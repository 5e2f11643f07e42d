"""The model to train: the base model, frozen, with one LoRA adapter for all trainable roles (Salemi et al. 2025,
arXiv 2506.10844, appendix D.2)."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from safetensors.torch import load

from ratchet.core.config import LoraConfig, ModelConfig, TrainingConfig
from ratchet.core.errors import UserError, did_you_mean, first_line
from ratchet.core.installed import missing_package
from ratchet.core.processor import computes_bfloat16
from ratchet.inference.adapters import features_beyond_lora, read_adapter
from ratchet.inference.weights import layer_alone, linears, load_causal_model, trained_linears

SCALE = ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
"""The settings that change an adapter's effect beyond its weights and their shapes."""
PEFT_NAMES = [field.name for field in fields(PeftLoraConfig)]


def compute_type(model: ModelConfig) -> torch.dtype:
    """The precision of the frozen weights: float32 on a CPU, elsewhere the config's where the device computes in it.

    The adapter itself is always float32.
    """
    wanted: torch.dtype = getattr(torch, model.dtype)
    if on_cpu(model):
        return torch.float32
    return torch.float32 if wanted == torch.bfloat16 and not torch.cuda.is_bf16_supported() else wanted


def on_cpu(model: ModelConfig) -> bool:
    """True where the model is trained on the CPU."""
    return model.device == "cpu" or not torch.cuda.is_available()


def mixes_precision(model: ModelConfig, training: TrainingConfig, processes: int) -> bool:
    """True where matrix products are computed in bfloat16, from weights and adapter that may be in float32.

    On a CPU with instructions for it that is 1.8 times as fast (SmolLM2-135M, rows of 220 tokens, an Intel CPU with AMX
    and an AMD EPYC with AVX512-BF16 alike); on others it is several times slower.
    """
    if compute_type(model) == torch.bfloat16:
        return True
    wanted = model.dtype == "bfloat16" or (training.cpu_precision == "auto" and processes == 1)
    return wanted and on_cpu(model) and computes_bfloat16()


def load_model(model: ModelConfig) -> Any:
    """The base model in its compute type; never runs code that comes with a model."""
    return load_causal_model(model.path, model.revision, dtype=compute_type(model))


def peft_settings(lora: LoraConfig) -> PeftLoraConfig:
    """The settings as PEFT has them. UserError for unknown ones, and for more than engines apply: plain LoRA."""
    given = lora.model_dump()
    for name in given:
        if name not in PEFT_NAMES:
            raise UserError(f"training.lora.{name}: PEFT's LoraConfig has no such key{did_you_mean(name, PEFT_NAMES)}")
    try:
        settings = PeftLoraConfig(**given, task_type="CAUSAL_LM")
    except (TypeError, ValueError, ImportError) as error:
        raise UserError(f"training.lora: {first_line(error)}") from error
    if unknown := features_beyond_lora({name: getattr(settings, name) for name in given}):
        name, value = next(iter(unknown.items()))
        raise UserError(f"training.lora.{name} is {value!r}, and engines apply plain LoRA alone; leave it out")
    return settings


def _targets_of(model: Any, lora: LoraConfig) -> str | list[str]:
    """`target_modules` as PEFT is to have them: its own all-linear reaches routers and experts."""
    if lora.target_modules != "all-linear":
        return lora.target_modules
    layers = trained_linears(model)
    if layers.keys() == linears(model).keys():
        return "all-linear"
    return sorted({name.rpartition(".")[2] for name in layers})


def add_lora(model: Any, lora: LoraConfig, seed: int) -> Any:
    """Wrap `model` in a PeftModel. The adapter starts as no change at all (B = 0); A is drawn from `seed`."""
    check_targets(model, lora)
    set_seed(seed)
    settings = peft_settings(lora.model_copy(update={"target_modules": _targets_of(model, lora)}))
    try:
        adapted = get_peft_model(model, settings)
    except ValueError as error:
        raise UserError(f"training.lora: {first_line(error)}") from error
    if settings.target_parameters:
        raise UserError(
            f"{_target_key(lora)}: PEFT takes these names for the routers and experts of this model "
            f"({', '.join(sorted(settings.target_parameters))}), whose adapter no engine applies; leave them out"
        )
    if getattr(model, "is_part", False):  # in the whole model the same names are of other parts too
        layers = {name.rpartition(".")[2] for name, one in adapted.named_modules() if isinstance(one, LoraLayer)}
        settings.target_modules = rf".*\.language_model\.(.*\.)?({'|'.join(sorted(layers))})"
    return adapted


def check_targets(model: Any, lora: LoraConfig) -> None:
    """UserError where training.lora.target_modules name a layer that the model has not, or one whose adapter would be
    lost: engines apply adapters to linear layers alone, and on a GPU the loss is computed without the output head's."""
    targets, modules = lora.target_modules, dict(model.named_modules())
    said, layers = _target_key(lora), {name.rpartition(".")[2] for name in modules if name}
    is_pattern = isinstance(targets, str)
    for target in () if targets == "all-linear" else (targets,) if isinstance(targets, str) else targets:
        matching = {
            name: module
            for name, module in modules.items()
            if (re.fullmatch(target, name) if is_pattern else f".{name}".endswith(f".{target}"))
        }
        if not target or not matching:
            raise UserError(f"{said}: the model has no layer {target!r}{did_you_mean(target, layers)}")
        for name, module in matching.items():
            if module is model.get_output_embeddings():
                raise UserError(f"{said}: {name} is the output head, whose adapter a GPU would not train; leave it out")
            if not isinstance(module, torch.nn.Linear):
                kind = type(module).__name__
                raise UserError(f"{said}: {name} is no linear layer ({kind}), as an adapter needs; leave it out")


def _target_key(lora: LoraConfig) -> str:
    return f"training.lora.target_modules={lora.target_modules}"


def take_inputs_as_they_are(model: Any) -> None:
    """Let the adapter's layers leave the number format of their inputs to autocast.

    PEFT casts them to the adapter's float32, and autocast casts the copy back to 16 bits for each layer: the same
    numbers, in up to five copies of an input that the backward pass keeps."""
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.cast_input_dtype_enabled = False


def round_frozen_products(model: Any) -> None:
    """Keep the frozen weights of linear layers in the bfloat16 that autocast computes their products in.

    The products are the same, and the weights are not rounded again at every step. An output layer that shares its
    weights with the embedding gets weights of its own."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and not module.weight.requires_grad:
            module.weight = torch.nn.Parameter(module.weight.detach().to(torch.bfloat16), requires_grad=False)


def fuse_layers(model: Any) -> None:
    """Compute norms, rotations and gated units with Liger's kernels for GPUs, if `has_fused_layers`.

    The loss stays TRL's, whose output head computes only tokens with a label."""
    if has_fused_layers():
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model.get_base_model(), cross_entropy=False, fused_linear_cross_entropy=False)


def has_fused_layers() -> bool:
    """True where liger-kernel is installed. It leaves models that it has no kernels for as they are."""
    return missing_package("gpu") is None


def start_from_adapter(model: Any, folder: Path) -> None:
    """Start the PeftModel's adapter from the one in `folder`. UserError where it is damaged, or of another shape."""
    adapter = read_adapter(folder)
    theirs = adapter.config
    weights = {f"base_model.model.{layer_alone(name)}": one for name, one in load(adapter.weights).items()}
    mine = model.peft_config[model.active_adapter].to_dict()
    other = [
        f"{key} {theirs.get(key)} there, {mine[key]} here"
        for key in SCALE
        if (theirs.get(key) or 0) != (mine[key] or 0)
    ]
    there = {name: tuple(one.shape) for name, one in weights.items()}
    here = {name: tuple(one.shape) for name, one in get_peft_model_state_dict(model).items()}
    other += [
        f"{name} is {there.get(name, 'missing')} there, {here.get(name, 'not trained')} here"
        for name in sorted({*there, *here})
        if there.get(name) != here.get(name)
    ]
    if other:
        raise UserError(
            f"{folder}: this adapter has another shape than training.lora: {'; '.join(other[:3])}"
            + (f"; and {len(other) - 3} more" if len(other) > 3 else "")
            + ". Continue its training with its own settings, or start from the base model (rounds.start=base)"
        )
    set_peft_model_state_dict(model, weights)
