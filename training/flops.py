"""Model FLOPs of training, forward and backward, and the peaks of GPUs they are compared with.

Model FLOP utilisation (MFU; Chowdhery et al. 2022, arXiv 2204.02311, appendix B) = model FLOPs a second / the devices'
peak. A token of a row of s tokens takes

    4 P + 6 A + L * 6 * s * q    P: weights of the linear layers, frozen: 2 forward, 2 back to the inputs
                                 A: weights of the adapter: 2 more for their own gradient
                                 attention: 2 s q forward for a causal row, q = heads * head size, twice that backward;
                                 L layers
    + the head, 4 d V, for learnt tokens alone

Work that gradient checkpointing does again counts for nothing, as is usual for MFU: with it the hardware does about
half as much more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

PEAK_TFLOPS = {
    r"B200\b": 2250.0,  # nvidia.com/en-us/data-center/dgx-b200: 36 PFLOPS FP8 dense of 8, half of it in bf16
    r"H200\b": 989.4,  # NVIDIA H200 datasheet
    r"H100 PCIe\b": 756.0,  # NVIDIA H100 datasheet
    r"H100 NVL\b": 835.5,
    r"H100\b": 989.4,  # SXM5; NVIDIA H100 datasheet, and Hopper architecture whitepaper, table 2
    r"A100\b": 312.0,  # NVIDIA A100 datasheet
    r"L40S\b": 362.05,  # NVIDIA L40S datasheet
    r"L4\b": 121.0,  # NVIDIA L4 datasheet
    r"A10\b": 125.0,  # NVIDIA A10 datasheet
    r"RTX A6000\b": 154.8,  # NVIDIA Ampere GA102 whitepaper
    r"RTX 4090\b": 165.2,  # NVIDIA Ada GPU architecture whitepaper, table 2: bf16 with float32 sums
}
"""Dense bf16 TFLOP/s by a part of the name that CUDA gives the device. Datasheets that state a figure with sparsity are
halved."""


def peak_tflops(device: str) -> float | None:
    """The peak of a device by its name; None where it is not known, as for a slice of a GPU (MIG)."""
    if "MIG" in device:
        return None
    return next((peak for name, peak in PEAK_TFLOPS.items() if re.search(name, device)), None)


def peak_of(device: torch.device) -> float | None:
    """The peak of a device that computes; None for a CPU, or where it is not known."""
    return peak_tflops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


@dataclass(frozen=True)
class ModelFlops:
    """What the model FLOPs of a PeftModel depend on."""

    linear: int
    """Frozen weights of the linear layers with an adapter."""
    adapter: int
    head: int
    attention: int
    """Layers x width of the queries."""

    @classmethod
    def of(cls, model: Any) -> Self:
        """Counted on a PeftModel that is not sharded."""
        shape = model.get_base_model().config.get_text_config()
        heads = getattr(shape, "num_attention_heads", 0)  # a model without attention has none
        width = getattr(shape, "head_dim", None) or (shape.hidden_size // heads if heads else 0)
        return cls(
            # Not the weights' own number: four bits are packed two to a byte.
            linear=sum(
                layer.in_features * layer.out_features
                for name, layer in model.named_modules()
                if name.endswith(".base_layer")
            ),
            adapter=sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
            head=model.get_output_embeddings().weight.numel(),
            attention=shape.num_hidden_layers * heads * width if heads else 0,
        )

    def of_rows(self, lengths: Sequence[int], learnt: int) -> float:
        """Model FLOPs of rows of these numbers of tokens, of which `learnt` together have a loss."""
        each = 4 * self.linear + 6 * self.adapter
        squares = sum(length**2 for length in lengths)
        return float(each * sum(lengths) + 6 * self.attention * squares + 4 * self.head * learnt)
