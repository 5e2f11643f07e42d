"""The memory that a model takes for its weights and for the keys and values of a token, from its config.json, or from
the shapes of common models where none is on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ratchet.core.errors import UserError
from ratchet.core.http.environment import hub_reason, leave_unreachable_hub
from ratchet.inference.tokenizer import is_hub_name
from ratchet.inference.weights import EXPERTS, language_part, linears, trained_linears

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ROUNDED_BYTES = {"four_bit": 4.25 / 8, "fp8": 1.0}
"""Bytes of a rounded weight. Four bits have a scale for every 32 of them in MXFP4; others take 4.1 to 4.5 bits."""


@dataclass(frozen=True)
class Footprint:
    """The sizes of a model, from which its memory follows."""

    parameters: int
    """The number of parameters of the language model; tied weights count once."""
    weight_bytes: int
    """The bytes of all weights, which a server loads: of a multimodal model its other parts too."""
    kv_bytes_per_token: int
    """Bytes of the keys and values of all layers for one token."""
    kv_heads: int
    """The number of heads that keys and values can be split over; more devices hold copies."""
    linear_parameters: int
    """The number of weights of the linear layers, the head left out, experts included: those that are rounded to 8 or
    4 bits."""
    linear_features: int
    """The inputs plus outputs of every linear layer that all-linear means; its LoRA of rank r has r times as many
    parameters."""
    active_parameters: int
    """The parameters without the experts that a token does not pass, in a mixture of experts; else all."""

    def bytes_with(self, rounding: str | None, dtype: str, parameters: int | None = None) -> int:
        """Return the bytes of the weights where linear layers are rounded as `rounding` says, a key of `ROUNDED_BYTES`;
        of the language model with `parameters=size.parameters`, else of all parts."""
        whole = self.weight_bytes if parameters is None else parameters * DTYPE_BYTES[dtype]
        saved = DTYPE_BYTES[dtype] - ROUNDED_BYTES[rounding] if rounding else 0
        return int(whole - saved * self.linear_parameters)

    def lora_parameters(self, rank: int) -> int:
        return rank * self.linear_features


@cache
def footprint(path: str, revision: str | None, dtype: str) -> Footprint:
    """Count the footprint of a local folder or hub name on a model that is built without its weights. Raises
    UserError."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    try:
        config = read_shape(path, revision)
        text, is_part = language_part(config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(text, trust_remote_code=False)
            whole = AutoModelForImageTextToText.from_config(config, trust_remote_code=False) if is_part else model
    except UserError:
        raise
    except Exception as error:  # the readers of damaged files raise anything, bare Exception included
        raise UserError(f"{path}: cannot tell its size from its config.json: {hub_reason(error, path)}") from error
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    parameters = sum(weight.numel() for weight in model.parameters())
    linear = sum(layer.weight.numel() for layer in linears(model).values())
    # Experts are linear layers, or tensors of all experts together.
    experts = sum(weight.numel() for key, weight in model.named_parameters() if ".experts." in key)
    apart = sum(layer.weight.numel() for key, layer in linears(model).items() if ".experts." in key)
    count = next((number for key in EXPERTS if (number := getattr(text, key, None))), 1)
    used = getattr(text, "num_experts_per_tok", None) or count
    all_bytes = sum(weight.numel() for weight in whole.parameters()) * DTYPE_BYTES[dtype]
    rounding, rounds_experts_alone = _rounding(getattr(config, "quantization_config", None))
    size = Footprint(
        parameters=parameters,
        weight_bytes=all_bytes,
        kv_bytes_per_token=2 * text.num_hidden_layers * heads * width * DTYPE_BYTES[dtype],
        kv_heads=heads,
        linear_parameters=linear + experts - apart,
        linear_features=sum(one.in_features + one.out_features for one in trained_linears(model).values()),
        active_parameters=parameters - experts * (count - used) // count,
    )
    if rounding:
        rounded = replace(size, linear_parameters=experts) if rounds_experts_alone else size
        size = replace(size, weight_bytes=rounded.bytes_with(rounding, dtype))
    return size


def _rounding(quantization: Any) -> tuple[str | None, bool]:
    """(How the files of a model round its linear layers: a key of `ROUNDED_BYTES`; whether of experts alone), from what
    its config.json says of it."""
    if not quantization:
        return None, False
    said = quantization if isinstance(quantization, dict) else quantization.to_dict()
    is_mxfp4 = said.get("quant_method") == "mxfp4"
    return "four_bit" if said.get("bits") == 4 or said.get("load_in_4bit") or is_mxfp4 else "fp8", is_mxfp4


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
# The same of dense encoders.
ENCODERS: tuple[tuple[str, str, tuple[int, ...], bool, dict[str, Any]], ...] = (
    ("intfloat/e5-small -v2", "bert", (384, 1536, 12, 12, 12, 32, 30522), True, {}),
    ("intfloat/e5-base -v2", "bert", (768, 3072, 12, 12, 12, 64, 30522), True, {}),
    ("intfloat/e5-large -v2", "bert", (1024, 4096, 24, 16, 16, 64, 30522), True, {}),
    ("BAAI/bge-small-en -v1.5", "bert", (384, 1536, 12, 12, 12, 32, 30522), True, {}),
    ("BAAI/bge-base-en -v1.5", "bert", (768, 3072, 12, 12, 12, 64, 30522), True, {}),
    ("BAAI/bge-large-en -v1.5", "bert", (1024, 4096, 24, 16, 16, 64, 30522), True, {}),
    ("Qwen/Qwen3-Embedding-0.6B", "qwen3", (1024, 3072, 28, 16, 8, 128, 151669), True, {}),
    ("Qwen/Qwen3-Embedding-4B", "qwen3", (2560, 9728, 36, 32, 8, 128, 151665), True, {}),
    ("Qwen/Qwen3-Embedding-8B", "qwen3", (4096, 12288, 36, 32, 8, 128, 151665), False, {}),
)


def _published() -> Iterator[tuple[str, dict[str, Any]]]:
    for names, kind, widths, tied, more in (*TABLE, *ENCODERS):
        first, *variants = names.split()
        shape: dict[str, Any] = {"model_type": kind, **dict(zip(WIDTHS, widths, strict=True)), **more}
        if kind == "gemma3":
            shape = {"model_type": kind, "text_config": shape | {"model_type": "gemma3_text"}, "vision_config": SIGLIP}
        shape["tie_word_embeddings"] = tied
        yield from ((first + variant, shape) for variant in ("", *variants))


PUBLISHED: dict[str, dict[str, Any]] = dict(_published())
"""By name on the hub, what the model's config.json says of its shape."""


def read_shape(path: str, revision: str | None) -> Any:
    """Read the configuration of a local folder or hub name, whose weights are not needed. Of a model of `PUBLISHED`
    that is not on this machine it has the shape alone. What is wrong with the files raises whatever transformers
    raises."""
    from transformers import AutoConfig

    if path in PUBLISHED and revision is None and not Path(path).exists():
        try:
            return AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        except OSError:
            return AutoConfig.for_model(**PUBLISHED[path])
    if not Path(path).is_dir() and not is_hub_name(path):
        raise UserError(f"{path}: no such model folder; give a folder or a name on the hub")
    leave_unreachable_hub(path)
    return AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
