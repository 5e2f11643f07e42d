"""Numba's `njit`, with a cache folder for compiled kernels that is named after all the sources kernels are made of.

Numba compiles a kernel again when its own file changes, but not when a file that it calls into does: after an update of
the code, stale machine code would read a format that is no longer written. Every module with kernels imports `njit`
from here, and a user's own NUMBA_CACHE_DIR is left as it is.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
from filelock import FileLock
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys

LONGEST_WAIT = 60.0
"""Seconds to wait for a kernel that another process compiles; the largest takes 10 on a quiet core."""
ROOT = Path(__file__).parents[1]
LLVM = Path(__file__).with_name("llvm.py")
"""Beside this file in a checkout and in the wheel, where the packages that hold kernels lie below `ratchet`."""


def cache_folder() -> Path | None:
    """Return the folder for compiled kernels, in the user's cache or else the temporary folder; None where neither can
    be written."""
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
    """Return a folder that is ours alone: compiled code is run, so nobody else may have put it there."""
    folder = Path(tempfile.gettempdir()) / f"ratchet-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700 or not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{folder} is somebody else's")
    return folder


class _KernelCache(FunctionCache):
    """Numba's cache of one kernel, which is quicker to read, and lets processes that start together compile once.

    Numba registers everything that it can compile before it reads the cache, which takes longer than all else that a
    search does. Only what kernels call while they run is needed; compiling registers the rest by itself. Numba also
    reads and writes its index of a kernel, one file for all types, without a lock: two processes that compile for
    different types at once would give both the same file of machine code.
    """

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.compiling = contextlib.ExitStack()
        self._lock = Path(self.cache_path, f"{kernel.__module__}.{kernel.__qualname__}.lock")

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel for these types, or None once it is this process's turn to compile it."""
        rtsys.initialize(target_context)
        found = self._find(sig, target_context)
        if found is None:
            self.compiling.enter_context(_locked(self._lock))
            self.compiling.enter_context(_uncollected())
            found = self._find(sig, target_context)
        return found

    def _find(self, sig: Any, target_context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
        return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock, or nothing where the file system has none, or another process held it for LONGEST_WAIT seconds."""
    lock = FileLock(path, timeout=LONGEST_WAIT, thread_local=False, fallback_to_soft=False)
    with contextlib.suppress(OSError):  # filelock's Timeout is one too
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Stop garbage collections, which take an eighth of the time of compiling."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return numba.njit, without its cache where there is no folder to keep one in."""
    cached = options.pop("cache", False) and CACHED

    def decorate(function: Callable[..., Any]) -> Any:
        kernel = numba.njit(no_cfunc_wrapper=True, **options)(function)
        if not cached or numba.config.DISABLE_JIT:
            return kernel
        cache = _KernelCache(function)
        compile_kernel = kernel.compile

        def compile_once(signature: Any) -> Any:
            with global_compiler_lock, cache.compiling:  # one thread at a time: they share `compiling`
                return compile_kernel(signature)

        kernel._cache, kernel.compile = cache, compile_once
        return kernel

    return decorate


def inner(*arguments: Any, **options: Any) -> Any:
    """Compile a function that only kernels call, with them. Called from Python, it crashes.

    A constant that is passed to one is written np.int64(0): 0 has a type of its own, which it would be compiled for
    once more.
    """
    return numba.njit(*arguments, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


CACHED = "NUMBA_CACHE_DIR" in os.environ
if not CACHED and (folder := cache_folder()) is not None:
    numba.config.CACHE_DIR, CACHED = str(folder), True
