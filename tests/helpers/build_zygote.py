"""A process with everything loaded that forks one build per line of its input, and says how it went.

Run by zygote.py. A fresh interpreter per build would spend seconds on imports, and most kills would hit those.
A line is 'load', a tab and the name of a module to import; or when to kill a build, a tab, and JSON. When: seconds;
'grownS': S seconds after one more shard is there; 'more partsS': after one more encoded part; 'stepN': at the build's
N-th opening, renaming, making or removing of a file under the index; 'never'. The answer: its wait status, the number
of such steps, its process id.

JSON with the key `work` calls that function ('module:name') with the JSON in place of a build, under its `folder`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from index_build import content
from index_build.build import build_index
from ratchet.config import IndexConfig
from tests.helpers.tiny_index import shared_tokenizer, tiny_index

ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
STEPS = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"})


def folder_of(request: dict[str, Any]) -> Path:
    """Where the work writes."""
    return Path(request["folder"] if "work" in request else request["config"]["path"])


def build(request: dict[str, Any]) -> None:
    content.CHUNKS_PER_PART = request.get("encoded", content.CHUNKS_PER_PART)
    config = IndexConfig(**request["config"])
    build_index(config, shared_tokenizer(), "tiny", workers=request.get("workers", 1))


def run(request: dict[str, Any], step: int, out: int) -> None:
    inside = str(folder_of(request).absolute())
    work: Callable[[dict[str, Any]], object] = build
    if "work" in request:
        module, _, name = request["work"].partition(":")
        work = getattr(importlib.import_module(module), name)
    steps = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal steps
        # The spill files are 16 of a kind: the first stands for all.
        path = str(arguments[0]) if event in STEPS else ""
        if path.startswith(inside) and ("spill" not in path or path.endswith("spill-00")):
            steps += 1
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    work(request)
    os.write(out, str(steps).encode())


def fork(request: dict[str, Any], when: str) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            run(request, int(when[4:]) if when.startswith("step") else 0, writing)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    if found := re.fullmatch(r"(grown|more parts|)([0-9.]+)", when):
        shards = folder_of(request) / "shards"
        names = {"grown": "[0-9]*", "more parts": ".*.encoded/part-*"}.get(found[1])
        before = len(list(shards.glob(names))) if names else 0
        while names and len(list(shards.glob(names))) == before and os.waitid(os.P_PID, child, ENDED) is None:
            time.sleep(0.002)
        time.sleep(float(found[2]))
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    steps = os.read(reading, 20).decode()
    os.close(reading)
    return f"{status} {steps or 0} {child}"


def warm_up() -> None:
    """Kernels are loaded from Numba's cache by their first call."""
    with tempfile.TemporaryDirectory() as name:
        tiny_index(Path(name), [{"id": "a", "text": "harbour"}])


def main() -> None:
    warm_up()
    gc.freeze()  # a collection in a forked process would copy every page
    print("ready", flush=True)
    for line in sys.stdin:
        when, _, request = line.partition("\t")
        if when == "load":
            importlib.import_module(json.loads(request))
            print("ready", flush=True)
        else:
            print(fork(json.loads(request), when), flush=True)


if __name__ == "__main__":
    main()
