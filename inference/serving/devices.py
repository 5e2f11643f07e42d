"""Which GPUs there are and how much memory they have, as the server's own Python sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ratchet.core.errors import UserError, did_you_mean
from ratchet.core.processor import usable_memory

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
class Card:
    """A kind of GPU, to plan with."""

    gb: float
    """Memory in 10^9 bytes, as its maker states it; CUDA shows some percent more."""
    tokens_per_second: float | None = None
    """Prompt and new tokens together that it computes of LLaMA 7B in 16 bits, where requests have 2,048 and 128 of
    them. NVIDIA measured them with TensorRT-LLM (docs/source/performance.md of version 0.6.1: 591, 2,244 and 581 new
    tokens a second on A100, H100 and L40S); those of H100 and L40S with 8 bits, of which this is half."""


CARDS = {
    "A100-40": Card(40, 10_000),
    "A100-80": Card(80, 10_000),
    "H100": Card(80, 19_000),
    "H200": Card(141),
    "B200": Card(180),
    "L40S": Card(48, 4_900),
    "L4": Card(24),
    "A10": Card(24),
    "RTX 3090": Card(24),
    "RTX 4090": Card(24),
    "RTX 5090": Card(32),
    "RTX A6000": Card(48),
    "RTX 6000 Ada": Card(48),
}


def card_of(name: str) -> Card:
    """The card of a name, in whatever case and with whatever between its words. UserError for others."""
    by_letters = {_letters(known): card for known, card in CARDS.items()}
    card = by_letters.get(_letters(name).removeprefix("nvidia").removeprefix("geforce"))
    if card is None:
        raise UserError(
            f"--gpu {name}: not a known card{did_you_mean(name, CARDS)}; known are {', '.join(CARDS)}. For another, "
            "give its memory: --gpu-gb 48"
        )
    return card


def card_asked(name: str | None, gb: float | None) -> Card | None:
    """The card that --gpu or --gpu-gb gives, if one of them does. Raises UserError."""
    if name and gb:
        raise UserError("--gpu and --gpu-gb: give one of them, a card's name or its memory")
    if gb:
        return Card(gb)
    return card_of(name) if name else None


def _letters(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum()).removesuffix("gb")


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
    """The GPUs that `python` sees; empty without one, or where its torch is a build for CPUs.

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
    """GPUs of another machine, with all their memory free."""
    return [Gpu(str(i), int(gb * 1e9), int(gb * 1e9)) for i in range(count)]


def keep_free(gpus: Sequence[Gpu], taken: Iterable[tuple[str, int]]) -> list[Gpu]:
    """The GPUs with memory kept for what a command puts on them; `taken`: (device, bytes), such as ("auto", 10**9).

    The command's process counts the visible GPUs from 0, and `auto` and `cuda` are the first of them.
    """
    on: dict[int, int] = {}
    for device, size in taken:
        place = device.partition(":")[2]
        number = int(place) if place.isdecimal() else 0
        on[number] = on.get(number, CUDA_CONTEXT_BYTES) + size
    return [replace(gpu, kept=on.get(number, 0)) for number, gpu in enumerate(gpus)]


def available_memory() -> int:
    """Bytes of main memory that are available, file caches included, and no more than this process may use."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, usable_memory())
    return usable_memory()
