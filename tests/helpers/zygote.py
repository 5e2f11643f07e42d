"""Work in forked processes that are killed at a chosen moment or file operation.

They are forked from a process that has everything loaded: a fresh interpreter for each would spend seconds on imports,
and most kills would hit those.
"""

import atexit
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ratchet.core.config import IndexConfig
from ratchet.index_build.build import build_index
from tests.helpers.tiny_index import shared_tokenizer, tiny_index

Request = Mapping[str, Any]
STEPS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"})


class Zygote:
    """Another process, which forks work."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        context.Process(target=_serve, args=(other,)).start()
        other.close()
        atexit.register(self._connection.close)  # which ends it
        self.idle = True
        """Whether it waits for work; not where a test did not wait for the answer."""

    def ask(self, modules: Sequence[str], request: Request | None = None, when: str | float = "never") -> Any:
        """Have it import the modules and fork the work, if any; (wait status, steps) of that."""
        assert self.idle
        self.idle = False
        self._connection.send((modules, request, when))
        answer = self._connection.recv()
        self.idle = True
        return answer

    def build(self, config: IndexConfig, when: str | float, workers: int = 1) -> tuple[int, int]:
        """`run` of an index build."""
        built = {"config": config.model_dump(mode="json", exclude_defaults=True), "folder": config.path}
        return self.run({"work": "tests.helpers.zygote:build", "workers": workers, **built}, when)

    def run(self, request: Request, when: str | float) -> tuple[int, int]:
        """Call the function that request["work"] names ('module:name') with the request; the signal that ended it or 0,
        and the number of its steps: openings, renamings and removals of files below request["folder"]. `when` it is
        killed: a number of seconds, 'stepN' (at the N-th step), or 'never'."""
        status, steps = self.ask((), request, when)
        assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the work failed"
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, steps


_new_zygote = cache(Zygote)


def shared_zygote(*modules: str) -> Zygote:
    """The one of this process, with these modules loaded before it forks."""
    if not _new_zygote().idle:
        _new_zygote.cache_clear()
    zygote = _new_zygote()
    zygote.ask(modules)
    return zygote


def build(request: Request) -> None:
    """Build the index of request["config"]."""
    build_index(IndexConfig(**request["config"]), shared_tokenizer(), "tiny", workers=request["workers"])


def _serve(connection: Connection) -> None:
    with tempfile.TemporaryDirectory() as name:  # kernels are loaded from Numba's cache by their first call
        tiny_index(Path(name), [{"id": "a", "text": "harbour"}])
    gc.freeze()  # a collection in a forked process would copy every page
    while True:
        try:
            modules, request, when = connection.recv()
        except EOFError:
            return
        for module in modules:
            importlib.import_module(module)
        connection.send(None if request is None else _fork(request, when))


def _fork(request: Request, when: str | float) -> tuple[int, int]:
    """(wait status, steps)."""
    is_step = str(when).startswith("step")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            os.write(writing, b"%d" % _count_steps(request, int(str(when).removeprefix("step")) if is_step else 0))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    if isinstance(when, float):
        time.sleep(when)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    steps = os.read(reading, 20)
    os.close(reading)
    return status, int(steps or 0)


def _count_steps(request: Request, killed_at: int) -> int:
    module, _, name = request["work"].partition(":")
    work: Callable[[Request], object] = getattr(importlib.import_module(module), name)
    inside = str(Path(request["folder"]).absolute())
    steps = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal steps
        # The spill files are 16 of a kind: the first stands for all.
        path = str(arguments[0]) if event in STEPS else ""
        if path.startswith(inside) and ("spill" not in path or path.endswith("spill-00")):
            steps += 1
            if steps == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    work(request)
    return steps
