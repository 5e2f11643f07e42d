"""The memory of a step, from a model's shape: training's here; weights, keys and values are inference/footprint.py's.

What a training step holds, in bytes, for n = micro_batch x length tokens on a device, b bytes a number of the frozen
weights (h hidden, f inner, q and k widths of queries and keys, L layers, V words, m of the n tokens learnt):

    weights      b x parameters; with FSDP over g GPUs 1/g of them, and two layers whole
    adapter      16 x its parameters: float32 weight and gradient, two moments of Adam
    residuals    L x n x h x b: the input of every layer, kept for the backward pass
    one layer    n x [b (4f + 5h + 2q + 2k) to go back through it + b 2f of gradients on the way]; in 16 bits
                 n x (20h + 2f) bytes more for norms and LoRA's inputs in float32
    or the head  whichever is larger, as they are not held together. On a GPU the head is computed in tiles:
                 4096 x 32768 x b + m x h x (4 + b); on a CPU in one piece: 12 x m x V

Without gradient checkpointing every layer keeps what the backward pass needs, instead of its input alone.

Against what steps allocate, counted tensor by tensor on a CPU: the activations computed are more than those there by 4%
(bfloat16) and 5% (float32) on two layers as wide as Qwen2.5-7B's, and by 15% on SmolLM2-135M (float32);
tests/slurm/test_scale.py counts a small model. The process itself took 1 to 8% more than this whole sum
(`benchmarks/training.py` prints both). No GPU was at hand: there an allocator's gaps and the CUDA context come on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference.footprint import Footprint

TILE_TOKENS, TILE_WORDS = 4096, 32_768
"""TRL's head on a GPU (trl/kernels/chunked_logprob.py)."""


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    inner: int
    queries: int
    """Heads x width of a head."""
    keys: int
    """The same of keys, and of values."""
    vocabulary: int


def shape_of(config: Any) -> Shape:
    """Of a transformers config."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        queries=width * config.num_attention_heads,
        keys=width * heads,
        vocabulary=config.vocab_size,
    )


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on one device."""

    weights: int
    adapter: int
    residuals: int
    layer: int
    head: int

    @property
    def activations(self) -> int:
        return self.residuals + max(self.layer, self.head)

    @property
    def total(self) -> int:
        return self.weights + self.adapter + self.activations


@dataclass(frozen=True)
class Step:
    """A training step on one of some devices."""

    number_bytes: int
    """Of a frozen weight."""
    rank: int
    checkpointing: bool = True
    shards: int = 1
    """GPUs that FSDP spreads the weights over."""
    tiled_head: bool = True
    """As on a GPU."""

    def memory(self, shape: Shape, size: Footprint, tokens: int, learnt: int) -> TrainingMemory:
        """With so many tokens on the device at once, and so many of them learnt."""
        b, h, f, sixteen = self.number_bytes, shape.hidden, shape.inner, self.number_bytes == 2
        saved = b * (4 * f + 5 * h + 2 * shape.queries + 2 * shape.keys) + 12 * h * sixteen
        passing = b * 2 * f + (b * f + 8 * h) * sixteen
        kept, layer = (b * h, saved + passing) if self.checkpointing else (saved, passing)
        head = 12 * learnt * shape.vocabulary
        if self.tiled_head:
            head = b * min(learnt, TILE_TOKENS) * min(shape.vocabulary, TILE_WORDS) + learnt * h * (4 + b)
        weights = size.parameters * b
        if self.shards > 1:
            weights = weights // self.shards + 2 * weights // shape.layers
        return TrainingMemory(
            weights=weights,
            adapter=16 * size.lora_parameters(self.rank) // self.shards,
            residuals=shape.layers * tokens * kept,
            layer=tokens * layer,
            head=head,
        )

    def most_tokens(self, shape: Shape, size: Footprint, room: float) -> int:
        """Tokens on the device at once, all of them learnt, that fit `room` bytes; 0 where not even the weights do."""
        low, high = 0, 1 << 26
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.memory(shape, size, middle, middle).total <= room else (low, middle - 1)
        return low
