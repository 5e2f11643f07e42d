"""Loading a causal language model with its weights: from safetensors alone, and complete or not at all.

Of a multimodal model (Gemma 3 and 4, Qwen3.5, Mistral 3) the language model alone is loaded. Its layers are then named
`model.layers...`, and `model.language_model.layers...` in the whole model. Adapter folders have the names of the whole,
as PEFT and vLLM expect them: vLLM ignores others (vllm#34186, #39369, #48019).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ratchet.core.errors import UserError, first_line
from ratchet.core.http.environment import hub_reason, leave_unreachable_hub
from ratchet.inference.adapters import CONFIG, read_adapter

AGAIN = "if its files are damaged, copy or download it again"
WHOLE, ALONE = "model.language_model.", "model."
"""The beginnings of a language model's layers' names: in a multimodal model, and alone."""
KEY_MAPPING = {r"^language_model\.lm_head\.": "lm_head.", r"^(model\.)?language_model\.(model\.)?": ALONE}
"""Names of weights in files of multimodal models, of transformers before and after 4.52, to those alone."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Configurations' names of the number of experts."""
EXPERT_PARTS = {
    *("experts", "shared_experts", "shared_expert", "shared_expert_gate", "router", "gate"),
    *("gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3", "fc1_latent_proj", "fc2_latent_proj"),
}
"""Names of experts, routers and their layers."""
MAMBA = {"mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h"}
"""Models that take the weights of `out_proj` past an adapter, which PEFT refuses."""


def language_config(path: str, revision: str | None = None) -> tuple[Any, bool]:
    """Return (the configuration of the language model in a local folder or hub name, whether it is part of a larger
    model). What is wrong with the files raises whatever transformers raises."""
    from transformers import AutoConfig

    leave_unreachable_hub(path)
    return language_part(AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False))


def language_part(config: Any) -> tuple[Any, bool]:
    """`language_config` of a configuration of transformers."""
    text = config.get_text_config()
    if text is not config:
        text.tie_word_embeddings = config.tie_word_embeddings
    return text, text is not config


def is_multimodal(path: str, revision: str | None = None) -> bool:
    """Return whether the language model is part of a larger model; False where there is no readable configuration."""
    try:
        return language_config(path, revision)[1]
    except Exception:  # the readers of damaged files raise anything
        return False


def load_causal_model(path: str, revision: str | None = None, whole: bool = False, **options: Any) -> Any:
    """Load the language model of a local folder or hub name, or the `whole` of a multimodal model.

    `options` are those of transformers' `from_pretrained`. Raises UserError for files that are damaged, lack a tensor,
    do not fit config.json, are in a format that may run code (pickle), or need code that comes with the model.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    try:
        config, is_part = language_config(path, revision)
        kind: Any = AutoModelForImageTextToText if whole and is_part else AutoModelForCausalLM
        part = {"config": config, "key_mapping": KEY_MAPPING} if is_part and not whole else {}
        model, info = kind.from_pretrained(
            path,
            revision=revision,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **part,
            **options,
        )
    except Exception as error:  # the readers of damaged files raise anything
        raise UserError(f"{path}: cannot load the model: {hub_reason(error, path)} ({AGAIN})") from error
    if missing := sorted(info["missing_keys"]):  # which transformers fills with random numbers
        raise UserError(f"{path}: its weights lack {len(missing)} tensors, such as {missing[0]} ({AGAIN})")
    model.is_part = bool(part)
    return model


def layer_alone(name: str) -> str:
    """Return the name of an adapter's layer, as its file has it, in the language model alone."""
    name = name.removeprefix("base_model.model.")
    return re.sub(r"^(model\.)?language_model\.(model\.)?(?!lm_head)", ALONE, name)


def linears(model: Any) -> dict[str, Any]:
    """Return every linear layer but the output head, by name."""
    import torch

    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }


def trained_linears(model: Any) -> dict[str, Any]:
    """Return the layers that `all-linear` means, by name: every linear layer but the output head, and of a mixture of
    experts none of a feed-forward block: experts, routers and what is beside them keep the base model's weights."""
    has_experts = any((getattr(model.config, key, None) or 0) > 1 for key in EXPERTS)
    untrained = (EXPERT_PARTS if has_experts else set()) | ({"out_proj"} if model.config.model_type in MAMBA else set())
    return {name: module for name, module in linears(model).items() if untrained.isdisjoint(name.split("."))}


def merge_adapter(model: Any, folder: str | Path, base: str) -> Any:
    """Merge the adapter of a folder into the model's weights; `base` names the model in errors. Raises UserError where
    the adapter is damaged, or one of its layers finds no place."""
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    adapter = read_adapter(folder)
    known = {name for name, _ in model.named_modules()}
    if unknown := [name for name in adapter.layers if name.removeprefix("base_model.model.") not in known]:
        raise UserError(f"{folder}: was trained for another model: {base} has no layer {unknown[0]}")
    _untie_changed_head(model, adapter.layers)
    try:
        adapted = PeftModel.from_pretrained(model, str(folder))
        applied = {name for name, module in adapted.named_modules() if isinstance(module, LoraLayer)}
        if lost := sorted(applied ^ adapter.layers.keys()):
            raise UserError(f"{folder}: {CONFIG} and the weights beside it disagree about the layer {lost[0]}")
        return adapted.merge_and_unload(safe_merge=True)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{folder}: does not fit {base}: {first_line(error)}") from error


def _untie_changed_head(model: Any, layers: Iterable[str]) -> None:
    """Give the output head weights of its own where it shares the embedding's and an adapter is merged into one of the
    two: the other would change as well."""
    import torch

    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or head.weight is not embedding.weight:
        return
    changed = {name.removeprefix("base_model.model.") for name in layers}
    if any(module is head or module is embedding for name, module in model.named_modules() if name in changed):
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False
