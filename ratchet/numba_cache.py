"""Numba's `njit`, with a cache folder for compiled kernels that is named after all the sources kernels are made of.

Numba compiles a kernel again when its own file changes, but not when a file that it calls into does: after an update of
the code, stale machine code would read a format that is no longer written. Every module with kernels imports `njit`
from here, and a user's own NUMBA_CACHE_DIR is left as it is.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import numba

from ratchet.packages import ROOT

LLVM = Path(__file__).with_name("llvm.py")
"""Beside this file in a checkout and in the wheel, where the packages that hold kernels lie below `ratchet`."""


def cache_folder() -> Path | None:
    """The folder for compiled kernels, in the user's cache or, where that cannot be written, in the temporary folder.
    None where neither can be."""
    digest = hashlib.sha256()
    folders = (ROOT / place for place in ("retrieval", "index_build", "inference/local"))
    for source in (*(path for folder in folders for path in sorted(folder.rglob("*.py"))), LLVM):
        digest.update(source.read_bytes())
    name = f"numba-{digest.hexdigest()[:16]}"
    for find in (_home, _temporary):
        try:
            cache = find() / name
            cache.mkdir(parents=True, exist_ok=True)
            if os.access(cache, os.W_OK | os.X_OK):
                return cache
        except (OSError, RuntimeError):
            continue
    return None


def _home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ratchet"


def _temporary() -> Path:
    """A folder that is ours alone: compiled code is run, so nobody else may have put it there."""
    folder = Path(tempfile.gettempdir()) / f"ratchet-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700 or not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{folder} is somebody else's")
    return folder


def njit(*arguments: Any, **options: Any) -> Any:
    """numba.njit, without its cache where there is no folder to keep one in: each process then compiles again."""
    if not CACHED:
        options.pop("cache", None)
    return numba.njit(*arguments, no_cfunc_wrapper=True, **options)


def inner(*arguments: Any, **options: Any) -> Any:
    """numba.njit for a function that only kernels call, and is compiled with them. Called from Python, it crashes.

    Compiling what would take its arguments from Python takes longer than compiling most such functions. A constant
    that is passed to one is written np.int64(0): 0 has a type of its own, which it would be compiled for once more.
    """
    return numba.njit(*arguments, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


CACHED = "NUMBA_CACHE_DIR" in os.environ
if not CACHED and (folder := cache_folder()) is not None:
    numba.config.CACHE_DIR, CACHED = str(folder), True
