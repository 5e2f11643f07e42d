"""Which server goes on which GPU, and what part of that GPU's memory is its own: computed from the models' shapes.

vLLM takes one number, --gpu-memory-utilization: the part of a GPU's whole memory that one server may use, whatever
others use (vllm/config/cache.py). When it starts it refuses if less than that is free, loads the weights, measures
the rest, and gives what remains of its part to keys and values (v1/worker/gpu_worker.py). So servers on one GPU get
parts that add up to less than one, and start one after another: each takes memory that goes meanwhile for its own.

A server needs its weights, room for adapters, keys and values of one whole conversation, activations and CUDA
graphs. What is left of a GPU goes to the servers on it as more keys and values, in proportion to what they could use:
requests in flight x tokens of a conversation x bytes of a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference.footprint import DTYPE_BYTES, Footprint
from inference.serving.devices import Gpu
from inference.serving.plan import GB, Place, Serving
from ratchet.errors import UserError

CONTEXT = int(0.6 * GB)
"""Outside vLLM's part: the process's CUDA context and libraries, 0.4 to 0.6 GB on A100 and H100."""
ACTIVATIONS = 3 * GB
"""Largest of vLLM's own trial pass, which fills a batch of 8192 tokens (2048 on smaller GPUs) and samples for every
sequence: for a 10B model under 1.5 GB of activations, and as much for the sampler over 150,000 words."""
GRAPHS = int(1.5 * GB)
"""CUDA graphs of some fifty batch sizes; vLLM counts its own estimate of them in its part."""
SPARE = 0.03
"""Of every GPU: fragmentation, and what the estimates above miss."""
CPU_SHARE = 0.25
"""Of the main memory that is free, which all servers on a CPU together take for keys and values at most."""


@dataclass(frozen=True)
class Need:
    """What one server takes on each of its GPUs, in bytes."""

    serving: Serving
    replica: int
    weights: int
    adapters: int
    kv: int
    """One whole conversation, or serve.kv_gb."""
    wish: int
    """Keys and values of everything in flight; 0 where serve.kv_gb fixes them."""

    @property
    def fixed(self) -> int:
        return self.weights + self.adapters + ACTIVATIONS + GRAPHS

    @property
    def total(self) -> int:
        return self.fixed + self.kv + CONTEXT

    def line(self) -> str:
        parts = [
            f"weights {_gb(self.weights)}",
            *([f"adapters {_gb(self.adapters)}"] if self.adapters else []),
            f"activations {_gb(ACTIVATIONS)}",
            f"CUDA graphs {_gb(GRAPHS)}",
            f"CUDA context {_gb(CONTEXT)}",
            f"keys and values of {self.serving.model.max_context} tokens {_gb(self.kv)}"
            if self.wish
            else f"keys and values (kv_gb) {_gb(self.kv)}",
        ]
        return (
            f"{self.serving.name}-{self.replica} ({self.serving.model.path}): {' + '.join(parts)} = {_gb(self.total)}"
        )


def need(serving: Serving, replica: int, size: Footprint) -> Need:
    settings, model = serving.settings, serving.model
    devices = settings.tensor_parallel
    # Every adapter has its slot on the GPU from the start.
    adapters = settings.adapters * size.lora_parameters(serving.lora_rank) * DTYPE_BYTES[model.dtype]
    token = size.kv_bytes_per_token / min(devices, size.kv_heads)
    return Need(
        serving=serving,
        replica=replica,
        weights=size.weight_bytes // devices,
        adapters=adapters // devices,
        kv=int(settings.kv_gb * GB / devices) if settings.kv_gb else int(token * model.max_context),
        wish=0 if settings.kv_gb else int(token * model.max_context * serving.concurrency / settings.replicas),
    )


def split(servings: Sequence[Serving], sizes: Mapping[str, Footprint], gpus: Sequence[Gpu]) -> dict[str, list[Place]]:
    """The place of every server, by the name of what it serves. UserError with the arithmetic where they do not fit."""
    needs = [need(s, n, sizes[s.name]) for s in servings for n in range(1, s.settings.replicas + 1)]
    homes = _homes(needs, gpus)
    on = {gpu.name: [one for one, home in homes if gpu in home] for gpu in gpus}
    room = {gpu.name: _room(gpu) - sum(one.total for one in on[gpu.name]) for gpu in gpus}
    if any(left < 0 for left in room.values()):
        raise UserError(_does_not_fit(gpus, on, room))
    places: dict[str, list[Place]] = {serving.name: [] for serving in servings}
    for one, home in homes:
        # The same part on every GPU of a server: the smallest that it gets on any.
        part = min((one.fixed + one.kv + room[gpu.name] * _share(one, on[gpu.name])) / gpu.total for gpu in home)
        places[one.serving.name].append(Place(gpus=tuple(gpu.name for gpu in home), fraction=_down(part)))
    return places


def cpu_places(servings: Sequence[Serving], sizes: Mapping[str, Footprint], available: int) -> dict[str, list[Place]]:
    """The same for servers without a GPU, which take what they need of the main memory besides keys and values."""
    needs = [need(s, n, sizes[s.name]) for s in servings for n in range(1, s.settings.replicas + 1)]
    rest = available * CPU_SHARE - sum(one.kv for one in needs)
    places: dict[str, list[Place]] = {serving.name: [] for serving in servings}
    for one in needs:
        more = min(max(0.0, rest) * _share(one, needs), max(0, one.wish - one.kv))
        places[one.serving.name].append(Place(kv_bytes=int(one.kv + more)))
    wanted = sum(one.weights for one in needs) + sum(p.kv_bytes for ps in places.values() for p in ps)
    if wanted > available:
        lines = [
            f"  {one.serving.name}-{one.replica} ({one.serving.model.path}): weights {_gb(one.weights)} + keys and "
            f"values {_gb(one.kv)}"
            for one in needs
        ]
        raise UserError(
            f"the servers do not fit the main memory, of which {_gb(available)} is free:\n"
            + "\n".join(lines)
            + "\nWays out: a shorter models.*.max_context, a smaller serve.kv_gb, one model at a time (--models)"
        )
    return places


def table(servings: Sequence[Serving], sizes: Mapping[str, Footprint], places: Mapping[str, list[Place]]) -> list[str]:
    """The arithmetic behind the places, a line a server."""
    lines = []
    for serving in servings:
        for n, place in enumerate(places[serving.name], 1):
            one = need(serving, n, sizes[serving.name])
            if place.gpus:
                lines.append(f"GPU {','.join(place.gpus)}: {place.fraction:.3f} of its memory for {one.line()}")
            else:
                lines.append(
                    f"CPU: {_gb(place.kv_bytes)} for keys and values, {_gb(one.weights)} for weights of "
                    f"{serving.name}-{n} ({serving.model.path})"
                )
    return lines


def _homes(needs: Sequence[Need], gpus: Sequence[Gpu]) -> list[tuple[Need, list[Gpu]]]:
    """The largest server first, each on the GPUs with most room left."""
    room = {gpu.name: _room(gpu) for gpu in gpus}
    homes: dict[int, list[Gpu]] = {}
    for i, one in sorted(enumerate(needs), key=lambda pair: -pair[1].total):
        devices = one.serving.settings.tensor_parallel
        if devices > len(gpus):
            raise UserError(
                f"models.{one.serving.name}.serve.tensor_parallel is {devices}, and there are {len(gpus)} GPUs"
            )
        homes[i] = sorted(gpus, key=lambda gpu: -room[gpu.name])[:devices]
        for gpu in homes[i]:
            room[gpu.name] -= one.total
    return [(one, homes[i]) for i, one in enumerate(needs)]


def _room(gpu: Gpu) -> int:
    """What servers may take: others' use is not ours."""
    return int(gpu.free - SPARE * gpu.total)


def _share(one: Need, neighbours: Sequence[Need]) -> float:
    wishes = sum(neighbour.wish for neighbour in neighbours)
    return one.wish / wishes if wishes else 0.0


def _down(part: float) -> float:
    """To the three digits that the flag has, so that parts never add up to more than there is."""
    return int(part * 1000) / 1000


def _does_not_fit(gpus: Sequence[Gpu], on: Mapping[str, Sequence[Need]], room: Mapping[str, int]) -> str:
    lines = []
    for gpu in gpus:
        if room[gpu.name] >= 0:
            continue
        used = f", {_gb(gpu.total - gpu.free)} of it in use" if gpu.free < gpu.total else ""
        lines.append(f"the servers do not fit GPU {gpu.name} ({_gb(gpu.total)}{used}, {SPARE:.0%} kept spare):")
        lines += [f"  {one.line()}" for one in on[gpu.name]]
        lines.append(f"  together {_gb(sum(one.total for one in on[gpu.name]))}, {_gb(-room[gpu.name])} too much")
    lines.append(
        "Ways out: one model at a time (--models), a shorter models.*.max_context, serve.tensor_parallel over more "
        "GPUs, or a server elsewhere (models.*.url)"
    )
    return "\n".join(lines)


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB"
