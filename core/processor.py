"""This process's share of the machine: its instructions, its cores and its memory."""

from __future__ import annotations

import contextlib
import os
import re
from functools import cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
OWN_GROUPS = Path("/proc/self/cgroup")
ALL_GROUPS = Path("/sys/fs/cgroup")


@cache
def computes_bfloat16() -> bool:
    """Return whether this CPU multiplies matrices in bfloat16 (AMX, or AVX512's instructions for it), without torch.
    False where the system does not say, as on macOS, and where torch is told to use no AVX-512."""
    if os.environ.get("ATEN_CPU_CAPABILITY") in ("default", "avx2"):
        return False
    try:
        flags = CPU_INFO.read_text(errors="replace")
    except OSError:
        return False
    return re.search(r"^flags\s*:.*\b(amx_bf16|avx512_bf16)\b", flags, re.MULTILINE) is not None


def usable_cores() -> int:
    """Return the number of cores that this process may use; where the system does not say, all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_limits() -> list[Path]:
    """Return the files of Linux control groups, version 1 or 2, that may hold a memory limit of this process, that of
    its own group first. In a container the groups above its own are not there, and neither is its own under this
    name."""
    try:
        groups = [line.split(":", 2) for line in OWN_GROUPS.read_text().splitlines()]
    except OSError:
        return []
    files = []
    for _, controllers, path in groups:
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (ALL_GROUPS / "memory", "memory.limit_in_bytes") if controllers else (ALL_GROUPS, "memory.max")
        own = top / path.lstrip("/")
        files += [folder / name for folder in (own, *own.parents) if folder.is_relative_to(top)]
    return files


def usable_memory() -> int:
    """Return the bytes of main memory that this process may use, within the limit of a SLURM job or a container."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in memory_limits():
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            memory = min(memory, int(file.read_text()))
    return memory
