"""The memory that a model takes for its weights and for the keys and values of a token, from its config.json."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ratchet.core.errors import UserError
from ratchet.core.http.environment import hub_reason
from ratchet.inference.shapes import read_shape
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
    """Of all weights, which a server loads: of a multimodal model its other parts too."""
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
    """Of a mixture of experts, without the experts that a token does not pass; else all."""

    def bytes_with(self, rounding: str | None, dtype: str, parameters: int | None = None) -> int:
        """Bytes of the weights where linear layers are rounded as `rounding` says, a key of `ROUNDED_BYTES`; of the
        language model with `parameters=size.parameters`, else of all parts."""
        whole = self.weight_bytes if parameters is None else parameters * DTYPE_BYTES[dtype]
        saved = DTYPE_BYTES[dtype] - ROUNDED_BYTES[rounding] if rounding else 0
        return int(whole - saved * self.linear_parameters)

    def lora_parameters(self, rank: int) -> int:
        return rank * self.linear_features


def footprint(path: str, revision: str | None, dtype: str) -> Footprint:
    """The footprint of a local folder or hub name, counted on a model that is built without its weights. UserError."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    try:
        config = read_shape(path, revision)
        text, is_part = language_part(config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(text, trust_remote_code=False)
            whole = AutoModelForImageTextToText.from_config(config, trust_remote_code=False) if is_part else model
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
