"""Tiny encoder models of the real architectures, and what a text's weights are by the definition
w = log(1 + relu(max over tokens of scale * logit)), from all logits of one text, with no batch and no padding."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from tests.helpers.tiny import tiny_tokenizer

ROPE = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def save_tokenizer(folder: Path, template: str) -> Any:
    """The tiny tokenizer with special tokens around a text: '<bos> $A' as Llama 3's, '<bos> $A <eot>' as BERT's."""
    tokenizer = tiny_tokenizer("llama3", chat_template=False)
    bos, eot = tokenizer.bos_token, tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=template.replace("<bos>", bos).replace("<eot>", eot),
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in (bos, eot)],
    )
    tokenizer.save_pretrained(str(folder))
    return tokenizer


def save_llama(folder: Path, tied: bool = True, seed: int = 0) -> Path:
    """Llama 3.2's shape in small: grouped queries, Llama 3's scaled rotary positions, tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = save_tokenizer(folder, "<bos> $A")
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_parameters={**ROPE, "original_max_position_embeddings": 32},
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_masked(folder: Path, model_type: str = "bert", seed: int = 0) -> Path:
    """A tiny masked language model; every bias and norm random too, so that leaving one out is seen."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    tokenizer = save_tokenizer(folder, "<bos> $A <eot>")
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    if model_type == "distilbert":
        sizes = {"n_layers": 2, "n_heads": 4, "hidden_dim": 48}
    sizes |= {f"{name}_token_id": tokenizer.pad_token_id for name in ("pad", "bos", "eos", "cls", "sep")}
    config = AutoConfig.for_model(
        model_type, vocab_size=len(tokenizer), hidden_size=32, dim=32, max_position_embeddings=64, **sizes
    )
    model = AutoModelForMaskedLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder


def save_adapter(
    folder: Path, base: Path, seed: int = 1, targets: Sequence[str] = ("q_proj", "v_proj", "down_proj")
) -> Path:
    """A LoRA adapter to the Llama of `base`, random on both sides."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(targets))
    config.base_model_name_or_path = str(base)
    wrapped = get_peft_model(LlamaForCausalLM.from_pretrained(base), config)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    wrapped.save_pretrained(str(folder), save_embedding_layers=False)
    return folder


def merged_weights(base: Path, adapter: Path) -> dict[str, Tensor]:
    """W + (alpha / r) B A (Hu et al. 2021, section 4.1), by hand."""
    weights, low = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name, a in low.items():
        if ".lora_A." in name:
            target = name.removeprefix("base_model.model.").replace(".lora_A", "")
            tied = weights["model.embed_tokens.weight"]
            weights[target] = weights.get(target, tied) + 8 / 4 * low[name.replace("lora_A", "lora_B")] @ a
    return weights


@torch.inference_mode()
def llama_logits(
    folder: Path, ids: list[int], weights: dict[str, Tensor] | None = None, causal: bool = False
) -> Tensor:
    """[length, vocabulary] of transformers' Llama in float64, where every token sees every token, unless `causal`."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64)
    model.load_state_dict(weights or {}, strict=False)
    seen = None if causal else torch.zeros(1, 1, len(ids), len(ids), dtype=torch.float64)  # added to attention's scores
    return model(torch.tensor([ids]), attention_mask=seen).logits[0]


def pool(logits: Tensor, scale: float) -> Tensor:
    """[vocabulary] weights of a text, by the definition."""
    return torch.log1p(torch.relu(logits * scale)).max(0).values
