"""The memory of a training step, from the model's shape.

In bytes, for n tokens on a device at once, m of them with loss, b bytes a number of the frozen weights (h hidden, f
inner, q and k widths of queries and keys, a heads, L layers, r the adapter's rank, V vocabulary size). Of each token a
layer keeps for the backward pass

    b (4f + 4h + 2q + 2k)    inputs of the linear layers that have an adapter, queries, keys, values, the attention's
                             output, both sides of the gated product and its activation
    7 b r                    what lies between the two matrices of each adapter
    4a + 8                   the attention's log-sum-exp and the two norms' scales, in float32
    4h                       in 16 bits: the norms' inputs, which are float32, instead of b h for each

With gradient checkpointing it keeps b (h + q) + 4a instead, its input and what attention gives, and computes the rest
again for one layer at a time. On top of it come the gradients on their way through one layer, or the output head,
whichever is larger. Liger's kernels (`training.lora.fuse_layers`) keep b f + 4h less, in 16 bits: not the activation of
the gate, and the norms' inputs as they are.

Beside them a device holds the weights, of which FSDP over g GPUs leaves it 1/g, two complete layers, and b h V: the
output head, which every process holds complete until the backward pass ends (training/processes.py).

tests/training/test_memory.py compares the sums with what a training step allocates on a CPU, and `make gpu-check` with
what it does on a GPU.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from ratchet.inference.footprint import Footprint

if TYPE_CHECKING:  # else the help of commands that plan would load it
    import torch

LINEAR_LAYERS = 7
"""Linear layers of a decoder layer: queries, keys, values, output, gate, up and down."""
TILE_TOKENS, TILE_VOCABULARY = 4096, 32_768
"""TRL's output head on a GPU (trl/kernels/chunked_logprob.py)."""
OPTIMIZER_BYTES = 12
"""Bytes of an adapter's number beside the number itself: the gradient and two moments of Adam, in float32."""


@dataclass(frozen=True)
class Activations:
    """The activations of a dense decoder with gated linear units and one adapter on all of its linear layers."""

    layers: int
    hidden: int
    inner: int
    heads: int
    queries: int
    """Width of all heads' queries together."""
    keys: int
    """Width of all heads' keys together; that of the values is the same."""
    vocabulary: int
    rank: int
    bytes_each: int
    """Bytes of one number that is computed with."""
    tiled_head: bool
    """True where the head is computed in tiles, as on a GPU."""
    fused: bool
    """True where Liger's kernels compute norms and gated units."""

    @classmethod
    def of(cls, shape: Any, rank: int, dtype: torch.dtype, tiled_head: bool, fused: bool = False) -> Self | None:
        """From transformers' config of a text model; None where the formula does not hold: mixtures of experts."""
        experts = ("num_experts", "num_local_experts", "n_routed_experts")
        needed = ("intermediate_size", "num_attention_heads")
        if any(getattr(shape, name, None) for name in experts) or not all(
            getattr(shape, name, None) for name in needed
        ):
            return None
        heads = shape.num_attention_heads
        width = getattr(shape, "head_dim", None) or shape.hidden_size // heads
        return cls(
            layers=shape.num_hidden_layers,
            hidden=shape.hidden_size,
            inner=shape.intermediate_size,
            heads=heads,
            queries=width * heads,
            keys=width * (getattr(shape, "num_key_value_heads", None) or heads),
            vocabulary=shape.vocab_size,
            rank=rank,
            bytes_each=dtype.itemsize,
            tiled_head=tiled_head,
            fused=fused,
        )

    @property
    def saved(self) -> int:
        """Bytes that one layer saves of a token for its backward pass."""
        b, casts = self.bytes_each, self.bytes_each == 2 and not self.fused
        linear = b * ((3 if self.fused else 4) * self.inner + 4 * self.hidden + 2 * self.queries + 2 * self.keys)
        return linear + LINEAR_LAYERS * b * self.rank + 4 * self.heads + 8 + 4 * self.hidden * casts

    @property
    def passing(self) -> int:
        """Bytes of gradients of a token on their way back through one layer."""
        b, is_16_bit = self.bytes_each, self.bytes_each == 2
        return b * 2 * self.inner + (b * self.inner + 8 * self.hidden) * is_16_bit

    def total(self, tokens: int, learnt: int, checkpointing: bool) -> int:
        """Bytes at the peak of a forward and a backward pass over `tokens`, of which `learnt` have a loss."""
        kept, one_layer = self.saved, self.passing
        if checkpointing:
            kept = self.bytes_each * (self.hidden + self.queries) + 4 * self.heads
            one_layer += self.saved
        return self.layers * tokens * kept + max(tokens * one_layer, self.head(learnt))

    def head(self, learnt: int) -> int:
        """Bytes of the output head for `learnt` tokens with a loss."""
        if not self.tiled_head:
            return 12 * learnt * self.vocabulary
        tile = min(learnt, TILE_TOKENS) * min(self.vocabulary, TILE_VOCABULARY)
        return self.bytes_each * tile + learnt * self.hidden * (4 + self.bytes_each)


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of training on one device, in bytes."""

    weights: int
    adapter: int
    """With its gradients and the optimiser's moments."""
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.adapter + self.activations


def training_memory(
    size: Footprint,
    parts: Activations,
    tokens: int,
    learnt: int | None = None,
    *,
    checkpointing: bool = True,
    four_bit: bool = False,
    shards: int = 1,
) -> TrainingMemory:
    """The memory with `tokens` on the device at once, of which `learnt` have a loss (default: all). `shards`: GPUs that
    FSDP spreads the weights over."""
    dtype = "float32" if parts.bytes_each == 4 else "bfloat16"
    weights = size.bytes_with("four_bit" if four_bit else None, dtype, size.parameters)
    if shards > 1:
        weights = weights // shards + 2 * weights // parts.layers + parts.bytes_each * parts.hidden * parts.vocabulary
    return TrainingMemory(
        weights,
        (4 + OPTIMIZER_BYTES) * size.lora_parameters(parts.rank) // shards,
        parts.total(tokens, tokens if learnt is None else learnt, checkpointing),
    )


def max_tokens(memory: Callable[[int], TrainingMemory], room: float) -> int:
    """The most tokens whose memory fits in `room` bytes; 0 where the weights alone do not fit."""
    return max(0, bisect_right(range(1 << 26), room, key=lambda tokens: memory(tokens).total) - 1)
