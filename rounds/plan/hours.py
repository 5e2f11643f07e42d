"""The hours of each stage: trajectories x calls x tokens / tokens a second.

Speeds are a roofline: what a GPU's data sheet allows, times a part of it that is assumed. A decoding step reads the
weights once and the keys and values of every request; prefill and training are bound by computation, at 2 operations a
parameter and token forward, 2 backward through frozen weights, and 2 to compute a layer again with checkpointing.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.footprint import Footprint
from inference.serving.memory import MemoryEstimate
from rounds.plan.usage import JUDGE_NEW_TOKENS, JUDGE_PROMPT_TOKENS, JudgeUse, RoleUse, SystemUse

BANDWIDTH_PART = 0.5
"""The part of a GPU's memory bandwidth that decoding reaches."""
PREFILL_PART = 0.4
"""The part of a GPU's operations a second that prefill reaches."""
TRAINING_PART = 0.35
"""The part of a GPU's operations a second that training reaches."""


@dataclass(frozen=True)
class GpuModel:
    """A GPU's data sheet."""

    name: str
    memory: float
    """Bytes."""
    operations: float
    """Of 16-bit floating point a second, dense."""
    bandwidth: float
    """Bytes of its memory a second."""


GPUS = {
    "a100-40": GpuModel("A100 40 GB", 40e9, 312e12, 1.555e12),
    "a100": GpuModel("A100 80 GB", 80e9, 312e12, 2.039e12),
    "h100": GpuModel("H100 80 GB", 80e9, 989e12, 3.35e12),
    "h200": GpuModel("H200", 141e9, 989e12, 4.8e12),
    "l40s": GpuModel("L40S", 48e9, 362e12, 0.864e12),
}
"""Data sheets of NVIDIA, SXM where there is such a card."""


@dataclass(frozen=True)
class ServingSpeed:
    """Tokens a second of one server that has its GPUs to itself."""

    new: float
    prefill: float
    source: str


def serving_speed(size: Footprint, estimate: MemoryEstimate, kv: float, gpu: GpuModel) -> ServingSpeed:
    """The speed of a server with `kv` bytes for keys and values on each of its GPUs."""
    spec = estimate.spec
    requests, held, over = estimate.concurrency(kv), spec.tokens * estimate.token, spec.settings.tensor_parallel
    step = (estimate.weights + requests * held) / (gpu.bandwidth * BANDWIDTH_PART)
    prefill = gpu.operations * over * PREFILL_PART / (2 * size.parameters)
    source = (
        f"{gpu.name}, {gpu.bandwidth / 1e12:.3g} TB/s x {BANDWIDTH_PART:.0%}, {requests} requests of {spec.tokens:,} "
        f"tokens: {requests / step:,.0f} new tokens/s; {gpu.operations * over / 1e12:,.0f} TFLOPS x "
        f"{PREFILL_PART:.0%}: {prefill:,.0f} prompt tokens/s"
    )
    return ServingSpeed(requests / step, prefill, source)


def training_speed(size: Footprint, checkpointing: bool, gpu: GpuModel) -> float:
    """Tokens a second of training on one GPU."""
    return gpu.operations * TRAINING_PART / ((6 if checkpointing else 4) * size.parameters)


@dataclass(frozen=True)
class Work:
    """What one model computes in a stage."""

    model: str
    calls: float
    new_tokens: float
    prefilled_tokens: float
    """Prompt tokens that are in no cache."""

    def seconds(self, speed: ServingSpeed) -> float:
        """The time of one server."""
        return self.new_tokens / speed.new + self.prefilled_tokens / speed.prefill


def sampling_work(use: SystemUse, trajectories: float) -> list[Work]:
    """The work of each model that plays a role."""
    return [
        Work(
            model,
            trajectories * use.of_model(model).calls,
            trajectories * use.of_model(model).new_tokens,
            trajectories * use.of_model(model).prefilled_tokens,
        )
        for model in sorted({role.model for role in use.roles})
    ]


def judging_work(judge: str, use: JudgeUse, trajectories: float) -> Work:
    """The judge's work. Half of its prompts are assumed to be in the prefix cache: runs and nuggets share them."""
    calls = trajectories * use.total
    return Work(judge, calls, calls * JUDGE_NEW_TOKENS, calls * JUDGE_PROMPT_TOKENS / 2)


def row_tokens(roles: tuple[RoleUse, ...], max_length: int) -> float:
    """The mean tokens of a training row: of a conversation of these roles."""
    lengths = [min(role.conversation_tokens, max_length) for role in roles]
    return sum(lengths) / len(lengths) if lengths else 0.0
