"""Numba's `njit`, with a cache folder for compiled kernels that is named after all the sources kernels are made of.

Numba compiles a kernel again when its own file changes, but not when a file that it calls into does: after an update of
the code, stale machine code would read a format that is no longer written. Every module with kernels imports `njit`
from here, and a user's own NUMBA_CACHE_DIR is left as it is.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numba
from numba import njit as njit

from ratchet.packages import ROOT


def cache_folder() -> Path | None:
    """The folder for compiled kernels; None where there is no home to write to, so that Numba chooses a place."""
    digest = hashlib.sha256()
    for folder in ("retrieval", "index_build", "inference/local"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache = home / "ratchet" / f"numba-{digest.hexdigest()[:16]}"
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return cache


if "NUMBA_CACHE_DIR" not in os.environ and (folder := cache_folder()) is not None:
    numba.config.CACHE_DIR = str(folder)
