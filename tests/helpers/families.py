"""Today's model families at a width of 32: transformers' own classes with random weights, and the family's own chat
template on the tiny tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from ratchet.core.files import write_json
from ratchet.export.weights import PROCESSORS
from tests.helpers.templates import templated_tokenizer

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_routed_experts": 4, "first_k_dense_replace": 1}
SLIDING = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
QWEN35 = {
    **{"linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 16, "linear_value_head_dim": 16},
    "layer_types": ["linear_attention", "full_attention"],
}
LATENT = {
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16},
    **{"n_group": 1, "topk_group": 1, "num_key_value_heads": 2, "head_dim": 8},
}
GEMMA4 = {**SLIDING, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 600, "global_head_dim": 16}
NEMOTRON = {
    **{"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "num_hidden_layers": 4},
    **{"ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2, "chunk_size": 16},
    **{"n_routed_experts": 4, "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16},
}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
PATCHES = {"image_size": 16, "patch_size": 8}
QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
GEMMA4_VISION = {**VISION, "num_key_value_heads": 2, "head_dim": 8}


@dataclass(frozen=True)
class Family:
    template: str
    """The name of trl's file."""
    config: str
    """The class of transformers, of the whole model."""
    text: Mapping[str, Any]
    """What its language model's configuration has beyond SIZES."""
    vision: Mapping[str, Any] | None = None
    """The vision tower's configuration, of a multimodal class."""


FAMILIES = {
    "llama": Family("llama3_2", "LlamaConfig", {}),
    "qwen2": Family("qwen2_5", "Qwen2Config", {}),
    "qwen3": Family("qwen3", "Qwen3Config", {}),
    "qwen3_5": Family("qwen3_5_think", "Qwen3_5TextConfig", QWEN35),
    "qwen3_5 multimodal": Family("qwen3_5_think", "Qwen3_5Config", QWEN35, QWEN_VISION),
    "gemma3": Family("gemma3", "Gemma3TextConfig", SLIDING),
    "gemma3 multimodal": Family("gemma3", "Gemma3Config", SLIDING, VISION | PATCHES),
    "gemma4": Family("gemma4", "Gemma4TextConfig", GEMMA4),
    "gemma4 multimodal": Family("gemma4", "Gemma4Config", GEMMA4, GEMMA4_VISION),
    "gpt_oss": Family("gptoss", "GptOssConfig", {**SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "glm4_moe": Family("glm4moe", "Glm4MoeConfig", EXPERTS),
    "mistral": Family("llama3", "MistralConfig", {"sliding_window": None}),
    "mistral3 multimodal": Family("llama3", "Mistral3Config", {"sliding_window": None}, VISION | PATCHES),
    "phi3": Family("phi3", "Phi3Config", {"sliding_window": None}),
    "deepseek_v3": Family("deepseekv3", "DeepseekV3Config", {**EXPERTS, **LATENT}),
    "nemotron_h": Family("nemotron_3_nano", "NemotronHConfig", NEMOTRON),
}


def family_config(name: str) -> Any:
    """The configuration of the family's whole model."""
    family = FAMILIES[name]
    tokens = {"vocab_size": len(templated_tokenizer(family.template)), "bos_token_id": 0, "eos_token_id": 1}
    text = {**SIZES, **tokens, "pad_token_id": 0, **family.text}
    kind = getattr(transformers, family.config)
    if family.vision is None:
        return kind(**text)
    if name.startswith("mistral3"):
        text["model_type"] = "mistral"
    more = {"audio_config": None} if "audio_config" in kind.sub_configs else {}
    # What the whole model says of its head holds, whatever the part says.
    return kind(
        text_config=text, vision_config=dict(family.vision), tie_word_embeddings=name.startswith("gemma"), **more
    )


def save_family(name: str, folder: Path) -> Path:
    """A model folder of the family, with weights."""
    auto: Any = transformers.AutoModelForImageTextToText
    if FAMILIES[name].vision is None:
        auto = transformers.AutoModelForCausalLM
    torch.manual_seed(1)
    auto.from_config(family_config(name)).save_pretrained(folder)
    if FAMILIES[name].vision is not None:
        write_json(folder / PROCESSORS[0], {"image_mean": [0.5]})
    templated_tokenizer(FAMILIES[name].template).save_pretrained(str(folder))
    return folder
