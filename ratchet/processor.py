"""What the CPU can do."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


@cache
def computes_bfloat16() -> bool:
    """Whether this CPU multiplies matrices in bfloat16 (AMX, or AVX512's instructions for it).

    Without torch, which is slow to import. False where the system does not say, as on macOS.
    """
    try:
        flags = CPU_INFO.read_text(errors="replace")
    except OSError:
        return False
    return re.search(r"^flags\s*:.*\b(amx_bf16|avx512_bf16)\b", flags, re.MULTILINE) is not None


def usable_cores() -> int:
    """Cores that this process may use; where the system does not say, all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
