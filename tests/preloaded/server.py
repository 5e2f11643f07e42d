"""Forks a process with the heavy libraries loaded for each command that sitecustomize.py hands over.

    python tests/preloaded/server.py FILE

FILE is the number of an open Unix socket that listens. The libraries are loaded at the first command, and the server
ends with its standard input. Beside the socket, a file named after the process that stands for a command holds the
command's process.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

LIBRARIES = (
    "accelerate.state",
    "datasets",
    "httpx",
    "jinja2",
    "jsonschema",
    "numba",
    "peft",
    "pyarrow.parquet",
    "pydantic",
    "rich.table",
    "safetensors.torch",
    "scipy.stats",
    "sentence_transformers",
    "torch.distributed.run",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "trl.trainer.sft_trainer",
    "xgrammar",
    "yaml",
)
MODULES = (
    "ratchet.commands.sweep",
    "ratchet.evaluation.tables.comparison",
    "ratchet.index_build.build",
    "ratchet.inference.local.engine",
    "ratchet.inference.scripted",
    "ratchet.report.gather",
    "ratchet.report.page",
    "ratchet.report.plots",
    "ratchet.report.view",
    "ratchet.retrieval.sources.registry",
    "ratchet.rewards.scoring",
    "ratchet.rewards.summary",
    "ratchet.commands.recording",
    "ratchet.rounds.status",
    "ratchet.training.recipe",
    "ratchet.training.trainer",
)
"""Of the project, with all that they import: what most commands have in common. What a command starts with, its
__main__.py or its script, is run anew."""
ROOT = Path(__file__).resolve().parents[2]
READ_AT_IMPORT = (
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HOME",
    "NUMBA_CACHE_DIR",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "XDG_CACHE_HOME",
)
"""A command with another value of one of these variables is declined."""

selector = selectors.DefaultSelector()
commands: dict[int, socket.socket] = {}
"""The connection of each command that runs, by the command's process, which leads a process group."""
SENDER = struct.Struct("3i")
"""struct ucred of unix(7): process, user, group."""


def serve(listener: socket.socket) -> None:
    """Run commands until standard input ends, and then kill those that run."""
    selector.register(listener, selectors.EVENT_READ, partial(accept, listener))
    selector.register(sys.stdin, selectors.EVENT_READ, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it Ctrl-C as well
    while True:
        for key, _ in selector.select():
            if selector.get_map().get(key.fd) is key:  # what came before it may have closed it
                key.data()


def accept(listener: socket.socket) -> None:
    """Start the command of a new connection, and answer with its process, or with 0 to decline."""
    connection, _ = listener.accept()
    files = socket.recv_fds(connection, 1, 3)[1]
    line = connection.makefile().readline()
    is_whole = line.endswith("\n")  # otherwise it was killed while it asked
    # macOS has no pidfd_open, and forking is unsafe there.
    request = json.loads(line) if is_whole and sys.platform == "linux" else None
    process = 0
    if request and all(os.environ.get(name) == request["environment"].get(name) for name in READ_AT_IMPORT):
        load()
        process = os.fork()
        if not process:
            selector.close()
            for one in (listener, connection, *commands.values()):
                one.close()
            become(request, files)
        os.setpgid(process, process)
        sender = SENDER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, SENDER.size))[0]
        Path(listener.getsockname()).with_name(str(sender)).write_text(str(process))
    for file in files:
        os.close(file)
    with suppress(ConnectionError):
        connection.sendall(b"%d\n" % process)
    if not process:
        return connection.close()
    commands[process] = connection
    ended = os.pidfd_open(process)
    selector.register(ended, selectors.EVENT_READ, partial(finish, process, ended))
    selector.register(connection, selectors.EVENT_READ, partial(kill, process))


def finish(process: int, ended: int) -> None:
    """Answer with how a command ended."""
    selector.unregister(ended)
    os.close(ended)
    status = os.waitpid(process, 0)[1]
    with commands.pop(process) as connection, suppress(ConnectionError):
        if connection in selector.get_map():
            selector.unregister(connection)
        connection.sendall(b"%d\n" % status)


def kill(process: int) -> None:
    """The process that stands for the command was killed."""
    selector.unregister(commands[process])
    os.killpg(process, signal.SIGKILL)


def stop() -> None:
    """End this server, and all that it runs."""
    for process in commands:
        os.killpg(process, signal.SIGKILL)
    sys.exit()


@cache
def load() -> None:
    """Import the libraries and the project's modules, and let Numba set up what the first kernel of a process needs."""
    sys.path.insert(0, str(ROOT))  # each command gets its own
    for name in (*LIBRARIES, *MODULES):
        importlib.import_module(name)
    sys.modules["numba"].njit(lambda number: number + 1)(1)
    gc.freeze()  # a collection in a forked process would copy every page


def forget_modules() -> None:
    """Forget the project's modules where the command finds others of their names: the wheel's."""
    specs = (finder.find_spec("ratchet", None) for finder in sys.meta_path)  # importlib's own asks what is loaded
    found = next(filter(None, specs), None)
    if found is None or found.origin != sys.modules["ratchet"].__file__:
        for name in [name for name in sys.modules if name.partition(".")[0] == "ratchet"]:
            del sys.modules[name]


def become(request: dict[str, Any], files: list[int]) -> None:
    """Run the command in this process, which was just forked, and end with it."""
    with suppress(PermissionError):  # the server did it first
        os.setpgid(0, 0)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = [folder for folder in request["path"] if Path(folder) != Path(__file__).parent]
    forget_modules()
    with suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")  # the one that ours was found before
    code: object = 0
    try:
        run(request["words"])
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    status = code if isinstance(code, int) else int(code is not None)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 255)


def run(words: list[str]) -> None:
    """What `python WORDS` does."""
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path.insert(0, str(Path.cwd()))
        sys.modules["__main__"] = ModuleType("__main__")
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # which Python itself calls
    else:
        sys.argv[:] = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
