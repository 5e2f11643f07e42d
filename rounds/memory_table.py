"""The memory of each part of a run on a GPU, and where it stops fitting: the servers and a training step.

The sums are those by which servers are placed (inference/serving/memory.py) and those of training/memory.py. For
training, an allocator's gaps and the CUDA context come on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.config import Config, is_missing
from ratchet.core.files import read_json_file
from ratchet.inference.footprint import footprint
from ratchet.inference.serving.memory import SPARE_FRACTION, estimate_memory
from ratchet.inference.serving.specs import GB, ModelUse, ServerSpec
from ratchet.inference.shapes import read_shape
from ratchet.training.memory import Activations, max_tokens, training_memory
from ratchet.training.objectives.objective import load_objective


@dataclass(frozen=True)
class Node:
    """The GPUs of one node."""

    gpu: float
    """Memory of one GPU in bytes."""
    gpus: int
    """The number of GPUs."""


@dataclass(frozen=True)
class MemoryRow:
    """The memory of one part on each of its GPUs, in bytes."""

    part: str
    limit: str
    """Where it stops fitting, or why nothing is known."""
    weights: float = 0.0
    adapter: float = 0.0
    """With its gradients and the optimiser's moments, where it is trained."""
    working: float = 0.0
    """Keys and values of one complete conversation, or a training step's activations."""
    overhead: float = 0.0
    """Activations, CUDA graphs and the CUDA context of a server."""

    @property
    def total(self) -> float:
        return self.weights + self.adapter + self.working + self.overhead


def memory_table(config: Config, node: Node, uses: Mapping[str, ModelUse], documents: int | None) -> list[MemoryRow]:
    """The rows of a config. `documents`: those of the corpus; None: those of the built index. UserError."""
    servers = [_server(config, name, node, uses.get(name, ModelUse())) for name in config.models]
    return [*servers, _training(config, node), _index(config, documents)]


def _server(config: Config, name: str, node: Node, use: ModelUse) -> MemoryRow:
    """A server of one model that has its GPUs to itself."""
    model, settings = config.models[name], config.serve_config(name)
    if model.engine in ("chat-api", "scripted"):
        return MemoryRow(f"serve {name}", f"elsewhere (engine: {model.engine})")
    spec = ServerSpec((name,), model, settings, model.concurrency, use.calls, use.conversation_tokens, use.is_measured)
    need = estimate_memory(spec, footprint(model.path, model.revision, model.dtype))
    conversation = need.token * model.max_context
    overhead = need.total - need.weights - need.adapters - need.kv
    room = node.gpu * (1 - SPARE_FRACTION) - need.weights - need.adapters - overhead
    limit = (
        f"DOES NOT FIT a GPU of {node.gpu / GB:g} GB: tensor-parallel-size, or a shorter max_context"
        if room < conversation
        else f"{int(room // conversation)} conversations of {model.max_context:,} tokens at once, or "
        f"{need.concurrency(room)} requests of {spec.tokens:,}"
    )
    return MemoryRow(f"serve {name}", limit, need.weights, need.adapters, conversation, overhead)


def _training(config: Config, node: Node) -> MemoryRow:
    import torch

    training = config.training
    model, length = config.models[training.model], training.max_length
    size, shape = footprint(model.path, model.revision, model.dtype), read_shape(model.path, model.revision)
    tiled_head = not load_objective(training).keeps_logits
    parts = Activations.of(shape.get_text_config(), training.lora.r, getattr(torch, model.dtype), tiled_head)
    if parts is None:
        return MemoryRow("train", f"the formula does not describe models of the type {shape.model_type}")
    form = {"checkpointing": training.gradient_checkpointing, "four_bit": training.four_bit}
    need = training_memory(size, parts, training.micro_batch * length, **form)
    fits = max_tokens(lambda tokens: training_memory(size, parts, tokens, **form), node.gpu)
    limit = f"micro_batch {fits // length} at most, of {length:,} tokens"
    if need.total > node.gpu:
        gpus = max(2, node.gpus)
        sharded = training_memory(size, parts, training.micro_batch * length, shards=gpus, **form).total
        limit = f"DOES NOT FIT a GPU of {node.gpu / GB:g} GB: " + (
            f"with FSDP on {gpus} GPUs {sharded / GB:.1f} GB"
            if sharded <= node.gpu
            else "lower max_length or micro_batch"
        )
    return MemoryRow("train", limit, need.weights, need.adapter, need.activations)


def _index(config: Config, documents: int | None) -> MemoryRow:
    """The index, which is on disk and served from main memory."""
    index = config.index
    if is_missing(index):
        return MemoryRow("index", "none")
    if index.url is not None:
        return MemoryRow("index", f"elsewhere ({index.url})")
    folder = Path(index.path)
    try:
        there = read_json_file(folder / "manifest.json")["documents"]
        each = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / there
    except (OSError, ValueError, KeyError, ZeroDivisionError):
        return MemoryRow("index", f"not built ({folder}): build one of a part of the documents to plan for all")
    number = documents or there
    return MemoryRow("index", f"{number:,} documents x {each:,.0f} bytes: {number * each / GB:,.3g} GB of main memory")
