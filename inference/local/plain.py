"""What models need transformers' own caches: those whose layers do more than attend to all tokens before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ratchet.inference.local.decoder import KNOWN


def why_unpaged(config: Any, limit: int) -> str:
    """Why sequences of up to `limit` tokens of a model need more than pages of keys and values; empty where they do
    not. `config`: the model's."""
    for layer in DynamicCache(config=config).layers:
        window = getattr(layer, "sliding_window", None)
        if type(layer) is not DynamicLayer and (window is None or window < limit):
            return f"its cache has a {type(layer).__name__}"
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    for one in rope.values() if all(isinstance(part, dict) for part in rope.values()) else [rope]:
        known = one.get("original_max_position_embeddings") or 0
        if one.get("rope_type") in {"dynamic", "longrope"} and known < limit:
            return f"its positions turn otherwise in texts of more than {known} tokens (rope_type: {one['rope_type']})"
    return ""


def use_plain_attention(model: Any) -> None:
    """Let a model attend in transformers' own way, by torch's kernel where the model supports it."""
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # gpt-oss has sinks
        model.set_attn_implementation("eager")


def what_runs(model: Any, device: str, has_decoder: bool, unpaged: str) -> Iterator[str]:
    """Lines for the log where it is not our decoder that runs a model; `unpaged` as `why_unpaged` gives it."""
    name = type(model).__name__
    if device == "cuda":
        yield "vLLM is the engine for GPUs (engine: vllm); engine: local is made for CPUs"
    if unpaged:
        what = "sequences run one after the other, and every prompt is computed whole"
        yield f"{name} runs in transformers' own code and cache, since {unpaged}: {what}"
    elif device == "cpu" and not has_decoder:
        known = ", ".join(sorted(one.removesuffix("ForCausalLM") for one in KNOWN))
        yield f"{name} runs in transformers' own code; the decoder for CPUs has {known}"
