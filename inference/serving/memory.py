"""Which server goes on which GPU, and the part of that GPU's memory it may use, computed from the models' shapes.

vLLM takes one number, --gpu-memory-utilization: the part of a GPU's total memory that one server may use, whatever
others use (vllm/config/cache.py). When it starts it fails if less than that is free, loads the weights, measures
activations, and gives the rest of its part to keys and values (v1/worker/gpu_worker.py). So servers on one GPU get
parts that add up to less than one, and start one after another: each counts memory that others
take meanwhile as its own.

A server needs its weights, room for adapters, keys and values of one complete conversation, activations and CUDA
graphs. What is left of a GPU goes to the servers on it as more keys and values, in proportion to what their share of
the calls holds: calls x tokens of a conversation x bytes of a token. Where `models.*.concurrency` is set for all of
them, it takes the place of the calls.

The requests in flight of a server are its memory for keys and values by the tokens of a conversation, 256 at most, and
64 at least until a run has measured the tokens.

Which GPUs there are, and how much memory they have, is as the server's own Python sees them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ratchet.core.config.models import DEFAULT_CONCURRENCY, KV_BYTES, LORAS, MAX_NUM_SEQS
from ratchet.core.errors import UserError
from ratchet.core.processor import usable_memory
from ratchet.inference.footprint import DTYPE_BYTES, Footprint
from ratchet.inference.serving.specs import GB, Placement, ServerSpec

ACTIVATION_BYTES = 3 * GB
"""The peak of vLLM's profiling pass, which fills a batch of 8192 tokens (2048 on smaller GPUs) and samples for every
sequence: for a 10B model under 1.5 GB of activations, and as much for the sampler over 150,000 words."""
CUDA_GRAPH_BYTES = int(1.5 * GB)
"""CUDA graphs of about fifty batch sizes; vLLM counts its own estimate of them in its part."""
SPARE_FRACTION = 0.03
"""The part of every GPU kept free for fragmentation and errors of the estimates above."""
MAX_IN_FLIGHT = 256
"""The most requests in flight at one server by default. ACTIVATION_BYTES has room for as many: their logits over
150,000 words in float32 are 0.15 GB."""
CPU_KV_FRACTION = 0.25
"""The largest part of free main memory that all servers on a CPU together take for keys and values."""


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory of one server on each of its GPUs, in bytes."""

    spec: ServerSpec
    weights: int
    adapters: int
    kv: int
    """Keys and values of one complete conversation, or kv-cache-memory-bytes."""
    token: float
    """Keys and values of one token."""

    @property
    def title(self) -> str:
        return f"{self.spec.name} ({self.spec.model.path})"

    @property
    def has_fixed_kv(self) -> bool:
        return KV_BYTES in self.spec.settings.arguments

    def demand(self, by_concurrency: bool) -> float:
        """Return its share of the rest, relative to others; 0 where kv-cache-memory-bytes fixes its keys and values."""
        requests = (self.spec.concurrency or 0) if by_concurrency else self.spec.calls
        return 0.0 if self.has_fixed_kv else requests / self.spec.settings.copies * self.spec.tokens * self.token

    def concurrency(self, kv: float) -> int:
        """Return the requests in flight with `kv` bytes of keys and values on each GPU; models.*.concurrency if it is
        set."""
        limit = int(self.spec.settings.arguments.get(MAX_NUM_SEQS, MAX_IN_FLIGHT))
        least = 1 if self.spec.is_measured else DEFAULT_CONCURRENCY  # vLLM lets those wait that it cannot hold
        return self.spec.concurrency or min(limit, max(least, int(kv / (self.token * self.spec.tokens))))

    @property
    def fixed(self) -> int:
        return self.weights + self.adapters + ACTIVATION_BYTES + CUDA_GRAPH_BYTES

    @property
    def total(self) -> int:
        return self.fixed + self.kv + CUDA_CONTEXT_BYTES

    def line(self) -> str:
        parts = [
            f"weights {_gb(self.weights)}",
            *([f"adapters {_gb(self.adapters)}"] if self.adapters else []),
            f"activations {_gb(ACTIVATION_BYTES)}",
            f"CUDA graphs {_gb(CUDA_GRAPH_BYTES)}",
            f"CUDA context {_gb(CUDA_CONTEXT_BYTES)}",
            f"keys and values of {self.spec.model.max_context} tokens {_gb(self.kv)}"
            if not self.has_fixed_kv
            else f"keys and values (kv-cache-memory-bytes) {_gb(self.kv)}",
        ]
        return f"{self.title}: {' + '.join(parts)} = {_gb(self.total)}"


def estimate_memory(spec: ServerSpec, size: Footprint) -> MemoryEstimate:
    """Estimate the memory of a server."""
    arguments, model, devices = spec.settings.arguments, spec.model, spec.settings.split
    # Every adapter has its slot on the GPU from the start; vLLM's default is one.
    adapters = int(arguments.get(LORAS, 1)) * size.lora_parameters(spec.lora_rank) * DTYPE_BYTES[model.dtype]
    token = size.kv_bytes_per_token / min(devices, size.kv_heads)
    if str(arguments.get("kv-cache-dtype")).startswith("fp8"):
        token /= DTYPE_BYTES[model.dtype]
    rounding = "fp8" if arguments.get("quantization") == "fp8" else None
    return MemoryEstimate(
        spec=spec,
        weights=size.bytes_with(rounding, model.dtype) // devices,
        adapters=adapters // devices,
        kv=int(arguments.get(KV_BYTES, token * model.max_context)),
        token=token,
    )


def assign_gpus(
    specs: Sequence[ServerSpec], sizes: Mapping[str, Footprint], gpus: Sequence[Gpu]
) -> dict[str, Placement]:
    """Place every server; placements by spec name. UserError with the arithmetic where they do not fit."""
    needs = [estimate_memory(spec, sizes[spec.name]) for spec in specs]
    assignments = _assign(needs, gpus)
    on = {gpu.name: [need for need, own_gpus in assignments if gpu in own_gpus] for gpu in gpus}
    room = {gpu.name: _usable_bytes(gpu) - sum(need.total for need in on[gpu.name]) for gpu in gpus}
    if any(left < 0 for left in room.values()):
        raise UserError(_overflow_message(gpus, on, room))
    placements: dict[str, Placement] = {}
    for need, own_gpus in assignments:
        # The same part on every GPU of a server: the smallest that it gets on any.
        part = min((need.fixed + need.kv + room[gpu.name] * _share(need, on[gpu.name])) / gpu.total for gpu in own_gpus)
        kv = min(_round_down(part) * gpu.total for gpu in own_gpus) - need.fixed
        names = tuple(gpu.name for gpu in own_gpus)
        placements[need.spec.name] = Placement(names, _round_down(part), int(kv * len(names)), need.concurrency(kv))
    return placements


def plan_cpu_memory(
    specs: Sequence[ServerSpec], sizes: Mapping[str, Footprint], available: int
) -> dict[str, Placement]:
    """Divide main memory between servers without a GPU. UserError with the arithmetic where they do not fit."""
    needs = [estimate_memory(spec, sizes[spec.name]) for spec in specs]
    rest = available * CPU_KV_FRACTION - sum(need.kv for need in needs)
    placements: dict[str, Placement] = {}
    for need in needs:
        useful = need.token * need.spec.model.max_context * (need.spec.concurrency or DEFAULT_CONCURRENCY)
        more = 0.0 if need.has_fixed_kv else min(max(0.0, rest) * _share(need, needs), max(0.0, useful - need.kv))
        placements[need.spec.name] = Placement(
            kv_bytes=int(need.kv + more),
            concurrency=need.spec.concurrency or min(need.concurrency(need.kv + more), DEFAULT_CONCURRENCY),
        )
    wanted = sum(need.weights for need in needs) + sum(placement.kv_bytes for placement in placements.values())
    if wanted > available:
        lines = [f"  {need.title}: weights {_gb(need.weights)} + keys and values {_gb(need.kv)}" for need in needs]
        raise UserError(
            f"the servers do not fit the main memory, of which {_gb(available)} is free:\n"
            + "\n".join(lines)
            + "\nReduce it with a shorter models.*.max_context, smaller kv-cache-memory-bytes, or one model at a time "
            "(--models)"
        )
    return placements


def placement_lines(
    specs: Sequence[ServerSpec], sizes: Mapping[str, Footprint], placements: Mapping[str, Placement]
) -> list[str]:
    """Return the arithmetic behind the placements, one line for each server."""
    lines = []
    for spec in specs:
        placement, need = placements[spec.name], estimate_memory(spec, sizes[spec.name])
        kv = f"{_gb(placement.kv_bytes)} for keys and values"
        if placement.gpus:
            at_once = placement.concurrency * spec.settings.copies
            lines += [
                f"GPU {','.join(placement.gpus)}: {placement.fraction:.3f} of its memory for {need.line()}",
                f"  {kv}: {at_once} requests at once"
                + (" (concurrency)" if spec.concurrency else f" of {spec.tokens} tokens"),
            ]
        else:
            lines.append(f"CPU: {kv}, {_gb(need.weights)} for weights of {need.title}")
    return lines


def _assign(needs: Sequence[MemoryEstimate], gpus: Sequence[Gpu]) -> list[tuple[MemoryEstimate, list[Gpu]]]:
    """Assign the largest server first, each to the GPUs with the most memory left."""
    room = {gpu.name: _usable_bytes(gpu) for gpu in gpus}
    assignments: dict[int, list[Gpu]] = {}
    for i, need in sorted(enumerate(needs), key=lambda pair: -pair[1].total):
        devices = need.spec.settings.split * need.spec.settings.copies
        if devices > len(gpus):
            raise UserError(
                f"models.{need.spec.name}.serve.arguments: tensor-parallel-size x data-parallel-size is {devices}, and "
                f"there are {len(gpus)} GPUs"
            )
        assignments[i] = sorted(gpus, key=lambda gpu: -room[gpu.name])[:devices]
        for gpu in assignments[i]:
            room[gpu.name] -= need.total
    return [(need, assignments[i]) for i, need in enumerate(needs)]


def _usable_bytes(gpu: Gpu) -> int:
    return int(gpu.free - gpu.kept - SPARE_FRACTION * gpu.total)


def _share(need: MemoryEstimate, needs: Sequence[MemoryEstimate]) -> float:
    by_concurrency = all(each.spec.concurrency for each in needs)
    total = sum(each.demand(by_concurrency) for each in needs)
    return need.demand(by_concurrency) / total if total else 0.0


def _round_down(part: float) -> float:
    """Round to the three digits of the flag, so that parts never add up to more than there is."""
    return int(part * 1000) / 1000


def _overflow_message(gpus: Sequence[Gpu], on: Mapping[str, Sequence[MemoryEstimate]], room: Mapping[str, int]) -> str:
    lines = []
    for gpu in gpus:
        if room[gpu.name] >= 0:
            continue
        used = f", {_gb(gpu.total - gpu.free)} of it in use" if gpu.free < gpu.total else ""
        used += f", {_gb(gpu.kept)} of it kept for encoders" if gpu.kept else ""
        lines.append(
            f"the servers do not fit GPU {gpu.name} ({_gb(gpu.total)}{used}, {SPARE_FRACTION:.0%} kept spare):"
        )
        lines += [f"  {need.line()}" for need in on[gpu.name]]
        lines.append(f"  together {_gb(sum(need.total for need in on[gpu.name]))}, {_gb(-room[gpu.name])} too much")
    lines.append(
        "Use one model at a time (--models), a shorter models.*.max_context, tensor-parallel-size under "
        "serve.arguments, or a server elsewhere (models.*.url)"
        + (", or encoders on the CPU (index.encoder.device, embedder.device)" if any(gpu.kept for gpu in gpus) else "")
    )
    return "\n".join(lines)


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB"


QUERY = """
import json, torch
found = []
if torch.cuda.is_available():
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        found.append([free, total])
print(json.dumps(found))
"""

CUDA_CONTEXT_BYTES = 600_000_000
"""A process's CUDA context and libraries on a GPU: 0.4 to 0.6 GB on A100 and H100."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that servers can use."""

    name: str
    """The name in CUDA_VISIBLE_DEVICES: a number, or the identifier of a GPU or MIG slice."""
    total: int
    """Total memory in bytes."""
    free: int
    """Free memory in bytes."""
    kept: int = 0
    """Bytes of the free memory that no server gets: encoders of the command beside the servers take them."""


def visible_gpus(python: str = "") -> list[Gpu]:
    """Return the GPUs that `python` sees; empty without one, or where its torch is a build for CPUs.

    A process of its own queries CUDA, which would otherwise hold some of every GPU's memory until this one ends.
    """
    python = python or sys.executable
    try:
        done = subprocess.run([python, "-c", QUERY], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"serve.python: {python}: cannot run ({error.strerror})") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"serve.python: {python} cannot import torch ({reason}); is vLLM installed there?")
    memory = json.loads(done.stdout.splitlines()[-1])
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = named if len(named) == len(memory) else [str(i) for i in range(len(memory))]
    return [Gpu(name, total, free) for name, (free, total) in zip(names, memory, strict=True)]


def planned_gpus(count: int, gb: float) -> list[Gpu]:
    """Return GPUs of another machine, with all their memory free."""
    return [Gpu(str(i), int(gb * 1e9), int(gb * 1e9)) for i in range(count)]


def keep_free(gpus: Sequence[Gpu], taken: Iterable[tuple[str, int]]) -> list[Gpu]:
    """Return the GPUs with memory kept for what a command puts on them; `taken`: (device, bytes), such as ("auto",
    10**9).

    The command's process counts the visible GPUs from 0, and `auto` and `cuda` are the first of them.
    """
    on: dict[int, int] = {}
    for device, size in taken:
        place = device.partition(":")[2]
        number = int(place) if place.isdecimal() else 0
        on[number] = on.get(number, CUDA_CONTEXT_BYTES) + size
    return [replace(gpu, kept=on.get(number, 0)) for number, gpu in enumerate(gpus)]


def available_memory() -> int:
    """Return the bytes of main memory that are available, file caches included, within this process's limit."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, usable_memory())
    return usable_memory()
