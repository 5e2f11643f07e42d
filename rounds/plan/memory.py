"""The memory of each step of a config, and where it stops fitting a GPU or a node, with the arithmetic.

What a training step holds, in bytes, for n = micro_batch x length tokens on a device and b bytes a number of the frozen
weights (h hidden, L layers, V vocabulary size):

    weights      b x parameters; with FSDP over g GPUs 1/g of them, two complete layers, and b x h x V: the output head,
                 which every process holds complete until the backward pass ends (training/processes.py)
    adapter      16 x its parameters: float32 weight and gradient, two moments of Adam
    activations  training/memory.py: what every layer keeps for the backward pass, and one layer on its way back or the
                 output head

No GPU was measured: there an allocator's gaps and the CUDA context come on top.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path

from ratchet.core.config import IndexConfig, ModelConfig, ServeConfig, TrainingConfig, is_missing
from ratchet.core.files import read_json_file
from ratchet.inference.footprint import Footprint, footprint
from ratchet.inference.serving.memory import (
    ACTIVATION_BYTES,
    CUDA_CONTEXT_BYTES,
    CUDA_GRAPH_BYTES,
    SPARE_FRACTION,
    estimate_memory,
)
from ratchet.inference.serving.specs import ModelUse, ServerSpec
from ratchet.inference.shapes import read_shape
from ratchet.training.memory import OPTIMIZER_BYTES, Activations
from ratchet.training.objectives.objective import load_objective

GB = 1e9


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
    """What all layers keep for the backward pass."""
    layer: int
    """One layer on its way back."""
    head: int
    """The output head, which is not held together with a layer."""

    @property
    def total(self) -> int:
        return self.weights + self.adapter + self.residuals + max(self.layer, self.head)


@dataclass(frozen=True)
class Step:
    """A training step of a model on one of some devices."""

    size: Footprint
    activations: Activations
    checkpointing: bool = True
    shards: int = 1
    """GPUs that FSDP spreads the weights over."""
    four_bit: bool = False
    """training.four_bit."""

    @property
    def weights(self) -> int:
        """Bytes of the frozen weights."""
        dtype = "float32" if self.activations.bytes_each == 4 else "bfloat16"
        return self.size.bytes_with("four_bit" if self.four_bit else None, dtype, self.size.parameters)

    def memory(self, tokens: int, trained: int) -> TrainingMemory:
        """The memory with `tokens` on the device at once, of which `trained` contribute to the loss."""
        parts = self.activations
        weights = self.weights
        if self.shards > 1:
            head = parts.bytes_each * parts.hidden * parts.vocabulary
            weights = weights // self.shards + 2 * weights // parts.layers + head
        return TrainingMemory(
            weights=weights,
            adapter=(OPTIMIZER_BYTES + 4) * self.size.lora_parameters(parts.rank) // self.shards,
            residuals=parts.layers * tokens * parts.kept(self.checkpointing),
            layer=tokens * parts.one_layer(self.checkpointing),
            head=parts.head(trained),
        )

    def max_tokens(self, room: float) -> int:
        """The most tokens, all of them with loss, that fit in `room` bytes; 0 where the weights alone do not fit."""
        return max(0, bisect_right(range(1 << 26), room, key=lambda count: self.memory(count, count).total) - 1)


def index_row(index: IndexConfig, node: Node, documents: int | None) -> TableRow:
    """The index on disk and in memory."""
    if is_missing(index):
        return TableRow("index", "none", "the config has no index")
    if index.url is not None:
        return TableRow("index", "elsewhere", f"a search server answers: {index.url}")
    folder = Path(index.path)
    try:
        there = read_json_file(folder / "manifest.json")["documents"]
        each = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / there
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return TableRow("index", "not built", f"{folder}: build an index of a part of the documents to plan for all")
    wanted = documents or there
    text = f"{wanted:,} documents x {each * there:,.0f} bytes / {there:,} documents = {format_gb(wanted * each)}"
    limit = "served from memory; `--memory-gb` says where that ends"
    if node.memory:
        limit = f"one node holds {node.memory / each:,.0f} documents in memory"
    return TableRow("index", format_gb(wanted * each), limit, (text,))


def serving_row(name: str, model: ModelConfig, serve: ServeConfig, node: Node, use: ModelUse) -> TableRow:
    """A server of one model that has its GPUs to itself."""
    if model.engine in ("chat-api", "scripted"):
        return TableRow(f"serve {name}", "elsewhere", f"engine: {model.engine}")
    spec = ServerSpec((name,), model, serve, model.concurrency, use.calls, use.conversation_tokens, use.is_measured)
    size, over = footprint(model.path, model.revision, model.dtype), spec.settings.split
    estimate, overhead = estimate_memory(spec, size), ACTIVATION_BYTES + CUDA_GRAPH_BYTES + CUDA_CONTEXT_BYTES
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
        limit = f"DOES NOT FIT a GPU of {format_gb(node.gpu)}: tensor-parallel-size, or a shorter max_context"
    else:
        limit = f"{int(room // one)} complete conversations at once on {f'{over} GPUs' if over > 1 else 'one GPU'}"
    needs = f"{format_gb(estimate.fixed + CUDA_CONTEXT_BYTES + one)} a GPU"
    return TableRow(f"serve {name}", needs, limit, arithmetic)


def training_row(training: TrainingConfig, model: ModelConfig, node: Node) -> TableRow:
    """A training step of the trained model."""
    import torch

    size = footprint(model.path, model.revision, model.dtype)
    loaded = read_shape(model.path, model.revision)
    rank, form = training.lora.r, "four bits (linear layers)" if training.four_bit else model.dtype
    dtype = getattr(torch, model.dtype)
    tiled_head = not load_objective(training).keeps_logits
    activations = Activations.of(loaded.get_text_config(), rank, dtype, tiled_head)
    if activations is None:
        return TableRow("train", "?", f"the formula does not describe models of the type {loaded.model_type}")
    single = Step(size, activations, training.gradient_checkpointing, four_bit=training.four_bit)
    tokens, layers = training.micro_batch * training.max_length, activations.layers
    sharded = replace(single, shards=max(2, node.gpus))
    memory, with_fsdp = single.memory(tokens, tokens), sharded.memory(tokens, tokens).total
    max_tokens = single.max_tokens(node.gpu)
    arithmetic = (
        f"weights {size.parameters:,} parameters in {form} = {format_gb(memory.weights)}; adapter "
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
