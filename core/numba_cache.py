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
from llvmlite.binding import add_symbol
from numba._dynfunc import make_function
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.runtime import _nrt_python
from numba.core.typed_passes import NativeLowering

LONGEST_WAIT = 60.0
"""Seconds to wait for a kernel that another process compiles; the largest takes 10 on a quiet core."""
ROOT = Path(__file__).parents[1]
BESIDE = (Path(__file__), Path(__file__).with_name("llvm.py"))
"""What else decides about the machine code, in a checkout and in the wheel."""


def cache_folder() -> Path | None:
    """Return the folder for compiled kernels, in the user's cache or else the temporary folder; None where neither can
    be written."""
    digest = hashlib.sha256()
    folders = (ROOT / place for place in ("retrieval", "index_build", "inference/local"))
    for source in (*(path for folder in folders for path in sorted(folder.rglob("*.py"))), *BESIDE):
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


class _Stored(CompileResultCacheImpl):
    """A kernel in the cache, without the environments of the functions that it calls.

    These hold the Python objects of exceptions that are made while a kernel runs, of which ours have none; reading them
    imports much of Numba.
    """

    def reduce(self, result: Any) -> Any:
        return (*super().reduce(result)[:-1], ())


class _KernelCache(FunctionCache):
    """Numba's cache of one kernel, which is quicker to read, and lets processes that start together compile once.

    Numba registers everything that it can compile, and compiles functions of its own, before it reads the cache, which
    takes longer than all else that a search does. Only the C functions that kernels call are needed; compiling adds the
    rest by itself. Numba also reads and writes its index of a kernel, one file for all types, without a lock: two
    processes that compile for different types at once would give both the same file of machine code.
    """

    _impl_class = _Stored

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel)
        self.compiling = contextlib.ExitStack()
        self._lock = Path(self.cache_path, f"{kernel.__module__}.{kernel.__qualname__}.lock")

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel for these types, or None once it is this process's turn to compile it."""
        for name, address in _nrt_python.c_helpers.items():
            add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
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


class _LinkedLibrary(JITCodeLibrary):
    """LLVM code that is linked into its callers' as it is, and optimised and compiled there."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LinkedLowering(NativeLowering):
    """Numba's last step of compiling, for a function that has callers in kernels alone.

    Numba optimises each function and makes machine code of it before it does both once more with each of its callers:
    without that, kernels are compiled in three quarters of the time.
    """

    _name = "linked_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        found = state.cr.fndesc
        # What callers find the code by. Python would call the address 0.
        name = make_function(found.lookup_module(), found.qualname, "", 0, state.cr.env, (state.library,))
        state.cr = state.cr._replace(cfunc=name)
        state.targetctx.insert_user_function(name, found, [state.library])
        return True


class _LinkedCompiler(Compiler):
    def define_pipelines(self) -> list[Any]:
        (usual,) = super().define_pipelines()
        passes = PassManager("linked")
        passes.passes = [(_LinkedLowering if one is NativeLowering else one, text) for one, text in usual.passes]
        passes.finalize()
        return [passes]


def inner(*arguments: Any, **options: Any) -> Any:
    """Compile a function that only kernels call, with them. Called from Python, it crashes.

    A constant that is passed to one is written np.int64(0): 0 has a type of its own, which it would be compiled for
    once more.
    """
    return numba.njit(
        *arguments, pipeline_class=_LinkedCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options
    )


CACHED = "NUMBA_CACHE_DIR" in os.environ
if not CACHED and (folder := cache_folder()) is not None:
    numba.config.CACHE_DIR, CACHED = str(folder), True
