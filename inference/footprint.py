"""The memory that a model takes for its weights and for the keys and values of a token, from its config.json."""

from __future__ import annotations

from dataclasses import dataclass

from inference.shapes import read_shape
from inference.weights import language_part, linears, trained_linears
from ratchet.errors import UserError, first_line

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


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
    """The number of weights of the linear layers, the head left out: those that vLLM rounds to 8 bits."""
    linear_features: int
    """The inputs plus outputs of every linear layer that all-linear means; its LoRA of rank r has r times as many
    parameters."""

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
        raise UserError(f"{path}: cannot tell its size from its config.json: {first_line(error)}") from error
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    parameters = sum(weight.numel() for weight in model.parameters())
    layers = linears(model).values()
    return Footprint(
        parameters=parameters,
        weight_bytes=sum(weight.numel() for weight in whole.parameters()) * DTYPE_BYTES[dtype],
        kv_bytes_per_token=2 * text.num_hidden_layers * heads * width * DTYPE_BYTES[dtype],
        kv_heads=heads,
        linear_parameters=sum(layer.weight.numel() for layer in layers),
        linear_features=sum(one.in_features + one.out_features for one in trained_linears(model).values()),
    )
