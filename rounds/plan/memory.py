"""The memory of each step of a config, and where it stops fitting a GPU or a node, with the arithmetic.

What a training step holds, in bytes, for n = micro_batch x length tokens on a device, b bytes a number of the frozen
weights (h hidden, f inner, q and k widths of queries and keys, L layers, V vocabulary size, m tokens with loss):

    weights      b x parameters; with FSDP over g GPUs 1/g of them, two complete layers, and b x h x V: the output head,
                 which every process holds complete until the backward pass ends (training/processes.py)
    adapter      16 x its parameters: float32 weight and gradient, two moments of Adam
    residuals    L x n x h x b: the input of every layer, kept for the backward pass
    one layer    n x [b (4f + 5h + 2q + 2k) to go back through it + b 2f of gradients on the way]; in 16 bits
                 n x (20h + 2f) bytes more for norms and LoRA's inputs in float32
    or the head  whichever is larger, as they are not held together. On a GPU the head is computed in tiles:
                 4096 x 32768 x b + m x h x (4 + b); on a CPU in one piece: 12 x m x V

Without gradient checkpointing every layer keeps what the backward pass needs, instead of its input alone.

Against what steps allocate, counted tensor by tensor on a CPU: the activations computed are more than those there by 4%
(bfloat16) and 5% (float32) on two layers as wide as Qwen2.5-7B's, and by 15% on SmolLM2-135M (float32);
tests/rounds/test_plan_memory.py counts a small model. The process itself took 1 to 8% more than this whole sum
(`benchmarks/training.py` prints both). No GPU was measured: there an allocator's gaps and the CUDA context come on top.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inference.footprint import DTYPE_BYTES, Footprint, footprint
from inference.serving.memory import (
    ACTIVATION_BYTES,
    CUDA_CONTEXT_BYTES,
    CUDA_GRAPH_BYTES,
    SPARE_FRACTION,
    estimate_memory,
)
from inference.serving.specs import ModelUse, ServerSpec
from ratchet.config import Config, is_missing

GB = 1e9
TILE_TOKENS, TILE_VOCABULARY = 4096, 32_768
"""TRL's head on a GPU (trl/kernels/chunked_logprob.py)."""


@dataclass(frozen=True)
class Node:
    """The hardware of one node."""

    gpu: float
    """Memory of one GPU in bytes."""
    gpus: int
    """The number of GPUs."""
    memory: float | None
    """Main memory in bytes."""


@dataclass(frozen=True)
class TableRow:
    """One row of the table, and the arithmetic below it."""

    step: str
    needs: str
    limit: str
    arithmetic: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of training on one device, in bytes."""

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
    """A training step of a model on one of some devices."""

    shape: Any
    """transformers' config of the text model."""
    size: Footprint
    weight_bytes: int
    """Bytes of one number of the frozen weights."""
    rank: int
    checkpointing: bool = True
    shards: int = 1
    """GPUs that FSDP spreads the weights over."""
    tiled_head: bool = True
    """True where the head is computed in tiles, as on a GPU."""

    def memory(self, tokens: int, trained: int) -> TrainingMemory:
        """The memory with `tokens` on the device at once, of which `trained` contribute to the loss."""
        shape, b, is_16_bit = self.shape, self.weight_bytes, self.weight_bytes == 2
        h, f, layers, vocabulary = shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers, shape.vocab_size
        heads = shape.num_attention_heads
        width = getattr(shape, "head_dim", None) or h // heads
        queries, keys = width * heads, width * (getattr(shape, "num_key_value_heads", None) or heads)
        saved = b * (4 * f + 5 * h + 2 * queries + 2 * keys) + 12 * h * is_16_bit
        passing = b * 2 * f + (b * f + 8 * h) * is_16_bit
        kept, layer = (b * h, saved + passing) if self.checkpointing else (saved, passing)
        head = 12 * trained * vocabulary
        if self.tiled_head:
            head = b * min(trained, TILE_TOKENS) * min(vocabulary, TILE_VOCABULARY) + trained * h * (4 + b)
        weights = self.size.parameters * b
        if self.shards > 1:
            weights = weights // self.shards + 2 * weights // layers + b * h * vocabulary
        return TrainingMemory(
            weights=weights,
            adapter=16 * self.size.lora_parameters(self.rank) // self.shards,
            residuals=layers * tokens * kept,
            layer=tokens * layer,
            head=head,
        )

    def max_tokens(self, room: float) -> int:
        """The most tokens, all of them with loss, that fit in `room` bytes; 0 where the weights alone do not fit."""
        return max(0, bisect_right(range(1 << 26), room, key=lambda count: self.memory(count, count).total) - 1)


def index_row(config: Config, node: Node, documents: int | None) -> TableRow:
    """The index on disk and in memory."""
    if is_missing(config.index):
        return TableRow("index", "none", "the config has no index")
    if config.index.url is not None:
        return TableRow("index", "elsewhere", f"a search server answers: {config.index.url}")
    folder = Path(config.index.path)
    capacity = f"`python -m index_build capacity --config X --documents {documents or 'N'}`"
    try:
        there = json.loads((folder / "manifest.json").read_bytes())["documents"]
        each = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / there
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return TableRow("index", "B bytes", f"{folder} is not built; {capacity} measures B")
    wanted = documents or there
    text = f"{wanted:,} documents x {each * there:,.0f} bytes / {there:,} documents = {format_gb(wanted * each)}"
    limit = "served from memory; `--memory-gb` says where that ends"
    if node.memory:
        limit = f"one node holds {node.memory / each:,.0f} documents in memory"
    return TableRow("index", format_gb(wanted * each), limit, (text, f"hours, jobs, memory, latency: {capacity}"))


def serving_row(config: Config, name: str, node: Node, use: ModelUse) -> TableRow:
    """A server of one model that has its GPUs to itself."""
    model = config.models[name]
    if model.engine in ("openai", "chat-api", "scripted"):
        return TableRow(f"serve {name}", "elsewhere", f"engine: {model.engine}")
    spec = ServerSpec((name,), model, config.serve_config(name), model.concurrency, use.calls, use.conversation_tokens)
    size, over = footprint(model.path, model.revision, model.dtype), spec.settings.tensor_parallel
    estimate, overhead = estimate_memory(spec, 1, size), ACTIVATION_BYTES + CUDA_GRAPH_BYTES + CUDA_CONTEXT_BYTES
    token, one = int(estimate.token), int(estimate.token) * model.max_context
    room = node.gpu * (1 - SPARE_FRACTION) - estimate.weights - estimate.adapters - overhead
    formats = "".join(f", {key} {value}" for key, value in model.reduced_formats.items())
    arithmetic = (
        f"weights {size.parameters:,} parameters in {model.dtype}{formats}"
        + (f" / {over} GPUs" if over > 1 else "")
        + f" = {format_gb(estimate.weights)}; adapters {format_gb(estimate.adapters)}; "
        f"activations, CUDA graphs and context {format_gb(overhead)}",
        f"keys and values {token:,} bytes a token x {model.max_context:,} tokens (models.{name}.max_context) = "
        f"{format_gb(one)} a conversation",
        f"left on a GPU of {format_gb(node.gpu)} less {SPARE_FRACTION:.0%}: {format_gb(room)} = "
        f"{max(0, int(room // token)):,} tokens; {spec.tokens:,} a conversation: {estimate.concurrency(max(room, 0))} "
        "requests at once" + (" (models.*.concurrency)" if model.concurrency else ""),
    )
    if room < one:
        limit = f"DOES NOT FIT a GPU of {format_gb(node.gpu)}: serve.tensor_parallel, or a shorter max_context"
    else:
        limit = f"{int(room // one)} complete conversations at once on {f'{over} GPUs' if over > 1 else 'one GPU'}"
    needs = f"{format_gb(estimate.fixed + CUDA_CONTEXT_BYTES + one)} a GPU"
    return TableRow(f"serve {name}", needs, limit, arithmetic)


def training_row(config: Config, node: Node) -> TableRow:
    """A training step."""
    from transformers import AutoConfig

    training, model = config.training, config.models[config.training.model]
    size = footprint(model.path, model.revision, model.dtype)
    loaded = AutoConfig.from_pretrained(model.path, revision=model.revision, trust_remote_code=False)
    shape, weight_bytes, rank = loaded.get_text_config(), DTYPE_BYTES[model.dtype], training.lora.r
    single = Step(shape, size, weight_bytes, rank, training.gradient_checkpointing)
    sharded = replace(single, shards=max(2, node.gpus))
    tokens, layers = training.micro_batch * training.max_length, shape.num_hidden_layers
    memory, with_fsdp = single.memory(tokens, tokens), sharded.memory(tokens, tokens).total
    max_tokens = single.max_tokens(node.gpu)
    arithmetic = (
        f"weights {size.parameters:,} x {weight_bytes} bytes = {format_gb(memory.weights)}; adapter "
        f"{size.lora_parameters(rank):,} (rank {rank} x {size.linear_features:,}, on all linear layers) x 16 bytes = "
        f"{format_gb(memory.adapter)}",
        f"residuals {layers} layers x {tokens:,} tokens (micro_batch x max_length) x "
        f"{memory.residuals // (layers * tokens):,} bytes = {format_gb(memory.residuals)}; then one layer {tokens:,} x "
        f"{memory.layer // tokens:,} bytes = {format_gb(memory.layer)} or the head {format_gb(memory.head)} "
        "(rounds/plan/memory.py)",
        f"{max_tokens:,} tokens fit: micro_batch {max_tokens // training.max_length} at max_length "
        f"{training.max_length:,}",
        f"on each of {sharded.shards} GPUs {format_gb(with_fsdp)} with configs/accelerate/fsdp.yaml (two layers and "
        f"the output head are complete on each), {format_gb(memory.total)} with ddp.yaml",
    )
    limit = f"micro_batch {max_tokens // training.max_length} at most on one GPU of {format_gb(node.gpu)}"
    if memory.total > node.gpu:
        fits = "fits with FSDP" if with_fsdp <= node.gpu and node.gpus > 1 else "lower max_length or micro_batch"
        limit = f"DOES NOT FIT one GPU of {format_gb(node.gpu)}: {fits}"
    return TableRow("train", f"{format_gb(memory.total)} a GPU", limit, arithmetic)


def format_gb(size: float) -> str:
    """Bytes in units of 10^9."""
    return "?" if math.isnan(size) else f"{size / GB:,.3f} GB" if size < GB else f"{size / GB:,.1f} GB"
