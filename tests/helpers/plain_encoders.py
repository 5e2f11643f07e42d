"""Tiny encoder models of the real architectures, and their forward passes written out in plain torch.

The forward passes read the raw safetensors file and share no code with retrieval/: one text, no batch, no padding, all
logits at once, then the definition w = log(1 + relu(max over tokens of scale * logit)).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, silu

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


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """[heads, length, size] -> [length, heads * size]; every token sees every token, unless `causal`."""
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[1:], dtype=torch.bool).tril(), -math.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


def llama_logits(
    folder: Path, ids: list[int], weights: dict[str, Tensor] | None = None, causal: bool = False
) -> Tensor:
    """[length, vocabulary], in float64."""
    config = json.loads((folder / "config.json").read_text())
    w = {key: value.double() for key, value in (weights or load_file(folder / "model.safetensors")).items()}
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    size = config["hidden_size"] // heads

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * w[name]

    speeds = []
    for i in range(size // 2):
        speed = ROPE["rope_theta"] ** (-2 * i / size)
        turns = 32 * speed / (2 * math.pi)  # of this pair over the length of pre-training
        smooth = min(max((turns - 1.0) / (4.0 - 1.0), 0.0), 1.0)
        speeds.append(speed * (smooth + (1 - smooth) / 8.0))
    angles = torch.arange(len(ids)).double()[:, None] * torch.tensor(speeds).double()

    def rotate(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def split(x: Tensor, count: int) -> Tensor:
        return x.view(len(ids), count, size).transpose(0, 1)

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        y = norm(x, at + "input_layernorm.weight")
        q, k, v = (y @ w[f"{at}self_attn.{name}_proj.weight"].T for name in "qkv")
        k, v = (t.repeat_interleave(heads // groups, 0) for t in (rotate(split(k, groups)), split(v, groups)))
        x = x + attend(rotate(split(q, heads)), k, v, causal) @ w[at + "self_attn.o_proj.weight"].T
        y = norm(x, at + "post_attention_layernorm.weight")
        gate, up = (y @ w[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (silu(gate) * up) @ w[at + "mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def bert_logits(folder: Path, ids: list[int]) -> Tensor:
    """[length, vocabulary], in float64."""
    config = json.loads((folder / "config.json").read_text())
    w = {key: value.double() for key, value in load_file(folder / "model.safetensors").items()}
    width, heads = config["hidden_size"], config["num_attention_heads"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, (width,), w[name + ".weight"], w[name + ".bias"], config["layer_norm_eps"])

    at = "bert.embeddings."
    words = w[at + "word_embeddings.weight"]
    x = words[ids] + w[at + "position_embeddings.weight"][: len(ids)] + w[at + "token_type_embeddings.weight"][0]
    x = norm(x, at + "LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"bert.encoder.layer.{layer}."
        q, k, v = (
            linear(x, f"{at}attention.self.{name}").view(len(ids), heads, -1).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        x = norm(x + linear(attend(q, k, v), at + "attention.output.dense"), at + "attention.output.LayerNorm")
        y = linear(gelu(linear(x, at + "intermediate.dense")), at + "output.dense")
        x = norm(x + y, at + "output.LayerNorm")
    at = "cls.predictions."
    x = norm(gelu(linear(x, at + "transform.dense")), at + "transform.LayerNorm")
    return x @ words.T + w[at + "bias"]


def pool(logits: Tensor, scale: float) -> Tensor:
    """[vocabulary] weights of a text, by the definition."""
    return torch.log1p(torch.relu(logits * scale)).max(0).values
