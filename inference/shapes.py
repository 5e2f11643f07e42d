"""The shapes of common models, so that a run is planned before any of its models is on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratchet.core.http.environment import leave_unreachable_hub

WIDTHS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size"),
)
MOE = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
GPT_OSS = {"num_local_experts": 32, "num_experts_per_tok": 4, "quantization_config": {"quant_method": "mxfp4"}}
SIGLIP = {
    **{"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "image_size": 896},
    **{"num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14, "vision_use_head": False},
}
"""The part of Gemma 3 from 4B on that sees."""
# Hub names with their variants, type, the numbers of WIDTHS, whether the output head is the embedding's weights, more.
TABLE: tuple[tuple[str, str, tuple[int, ...], bool, dict[str, Any]], ...] = (
    ("Qwen/Qwen2.5-0.5B -Instruct", "qwen2", (896, 4864, 24, 14, 2, 64, 151936), True, {}),
    ("Qwen/Qwen2.5-1.5B -Instruct", "qwen2", (1536, 8960, 28, 12, 2, 128, 151936), True, {}),
    ("Qwen/Qwen2.5-3B -Instruct", "qwen2", (2048, 11008, 36, 16, 2, 128, 151936), True, {}),
    ("Qwen/Qwen2.5-7B -Instruct", "qwen2", (3584, 18944, 28, 28, 4, 128, 152064), False, {}),
    ("Qwen/Qwen2.5-14B -Instruct", "qwen2", (5120, 13824, 48, 40, 8, 128, 152064), False, {}),
    ("Qwen/Qwen2.5-32B -Instruct", "qwen2", (5120, 27648, 64, 40, 8, 128, 152064), False, {}),
    ("Qwen/Qwen2.5-72B -Instruct", "qwen2", (8192, 29568, 80, 64, 8, 128, 152064), False, {}),
    ("Qwen/Qwen3-0.6B -Base", "qwen3", (1024, 3072, 28, 16, 8, 128, 151936), True, {}),
    ("Qwen/Qwen3-1.7B -Base", "qwen3", (2048, 6144, 28, 16, 8, 128, 151936), True, {}),
    ("Qwen/Qwen3-4B -Base -Instruct-2507 -Thinking-2507", "qwen3", (2560, 9728, 36, 32, 8, 128, 151936), True, {}),
    ("Qwen/Qwen3-8B -Base", "qwen3", (4096, 12288, 36, 32, 8, 128, 151936), False, {}),
    ("Qwen/Qwen3-14B -Base", "qwen3", (5120, 17408, 40, 40, 8, 128, 151936), False, {}),
    ("Qwen/Qwen3-32B", "qwen3", (5120, 25600, 64, 64, 8, 128, 151936), False, {}),
    (
        "Qwen/Qwen3-30B-A3B -Base -Instruct-2507 -Thinking-2507",
        *("qwen3_moe", (2048, 6144, 48, 32, 4, 128, 151936), False, MOE),
    ),
    ("meta-llama/Llama-3.2-1B -Instruct", "llama", (2048, 8192, 16, 32, 8, 64, 128256), True, {}),
    ("meta-llama/Llama-3.2-3B -Instruct", "llama", (3072, 8192, 28, 24, 8, 128, 128256), True, {}),
    ("meta-llama/Llama-3.1-8B -Instruct", "llama", (4096, 14336, 32, 32, 8, 128, 128256), False, {}),
    ("meta-llama/Llama-3.1-70B -Instruct", "llama", (8192, 28672, 80, 64, 8, 128, 128256), False, {}),
    ("meta-llama/Llama-3.3-70B-Instruct", "llama", (8192, 28672, 80, 64, 8, 128, 128256), False, {}),
    ("google/gemma-3-1b-it", "gemma3_text", (1152, 6912, 26, 4, 1, 256, 262144), True, {}),
    ("google/gemma-3-4b-it", "gemma3", (2560, 10240, 34, 8, 4, 256, 262208), True, {}),
    ("google/gemma-3-12b-it", "gemma3", (3840, 15360, 48, 16, 8, 256, 262208), True, {}),
    ("google/gemma-3-27b-it", "gemma3", (5376, 21504, 62, 32, 16, 128, 262208), True, {}),
    ("mistralai/Mistral-7B-Instruct-v0.2", "mistral", (4096, 14336, 32, 32, 8, 128, 32000), False, {}),
    ("mistralai/Mistral-7B-Instruct-v0.3", "mistral", (4096, 14336, 32, 32, 8, 128, 32768), False, {}),
    ("HuggingFaceTB/SmolLM2-135M -Instruct", "llama", (576, 1536, 30, 9, 3, 64, 49152), True, {}),
    ("HuggingFaceTB/SmolLM2-360M -Instruct", "llama", (960, 2560, 32, 15, 5, 64, 49152), True, {}),
    ("HuggingFaceTB/SmolLM2-1.7B -Instruct", "llama", (2048, 8192, 24, 32, 32, 64, 49152), True, {}),
    ("HuggingFaceTB/SmolLM3-3B", "smollm3", (2048, 11008, 36, 16, 4, 128, 128256), True, {"pad_token_id": 128004}),
    ("openai/gpt-oss-20b", "gpt_oss", (2880, 2880, 24, 64, 8, 64, 201088), False, GPT_OSS),
    ("tiiuae/Falcon3-10B-Instruct", "llama", (3072, 23040, 40, 12, 4, 256, 131072), False, {}),
)


def _published() -> Iterator[tuple[str, dict[str, Any]]]:
    for names, kind, widths, tied, more in TABLE:
        first, *variants = names.split()
        shape: dict[str, Any] = {"model_type": kind, **dict(zip(WIDTHS, widths, strict=True)), **more}
        if kind == "gemma3":
            shape = {"model_type": kind, "text_config": shape | {"model_type": "gemma3_text"}, "vision_config": SIGLIP}
        shape["tie_word_embeddings"] = tied
        yield from ((first + variant, shape) for variant in ("", *variants))


PUBLISHED: dict[str, dict[str, Any]] = dict(_published())
"""By name on the hub, what the model's config.json says of its shape."""


def read_shape(path: str, revision: str | None) -> Any:
    """The configuration of a local folder or hub name, whose weights are not needed. Of a model of `PUBLISHED` that is
    not on this machine it has the shape alone. What is wrong with the files raises whatever transformers raises."""
    from transformers import AutoConfig

    if path in PUBLISHED and revision is None and not Path(path).exists():
        try:
            return AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        except OSError:
            return AutoConfig.for_model(**PUBLISHED[path])
    leave_unreachable_hub(path)
    return AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
