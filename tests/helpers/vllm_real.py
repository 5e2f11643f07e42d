"""A real vLLM server on the CPU, started as users start it, by `ratchet models serve`: for tests marked `vllm`."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from ratchet.core.config import ModelConfig
from tests.helpers.experiment import ROOT, kill, preloaded
from tests.helpers.gateway import free_port
from tests.helpers.waiting import wait_for

VLLM = ROOT / ".venv-vllm" / "bin" / "python"

KEY = "RATCHET_API_KEY"
UNCOMPILED = {"TORCH_COMPILE_DISABLE": "1"}
"""For a server: vLLM compiles one function even where models are run eagerly, in half a minute on a new machine."""


COMPUTING = {
    "kv-cache-memory-bytes": 500_000_000,
    "distributed-executor-backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
}
"""For a server: it computes in the process of the engine."""

FORKED = """
import json, os, runpy, sys
import sitecustomize, vllm.entrypoints.openai.api_server

sitecustomize.fork_engines()
for words in json.loads(sys.argv[1]):
    if not os.fork():
        sys.argv[1:] = words
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
        sys.exit()
os.wait()
"""
"""Servers with these arguments, of one process that imports vLLM's modules."""


def vllm_model(path: str, max_context: int = 1024, **arguments: Any) -> dict[str, Any]:
    """The section of a config for a model that vLLM's CPU build serves."""
    return {
        "path": path,
        "engine": "vllm",
        "dtype": "float32",
        "device": "cpu",
        "max_context": max_context,
        "send_seed": False,
        "serve": {
            "python": str(VLLM),
            "arguments": {**COMPUTING, **arguments},
        },
    }


@contextmanager
def serving(path: str, folder: Path, max_context: int = 1024, **arguments: Any) -> Iterator[ModelConfig]:
    """A server of the model at `path`. Its key is in our own environment meanwhile, where clients look for it. What
    started it is killed in the end, and nothing of it may survive.

    One thread computes: on a machine with two cores, two would wait for each other while other tests run.
    """
    model = vllm_model(path, max_context, **arguments)
    config = folder / "served.yaml"
    splits = {split: {"path": "unused"} for split in ("train", "dev", "test")}
    values = {"run": str(folder / "served"), "models": {"agent": model}, "index": {"path": "unused"}}
    free = {"rewards": {"weights": {"em": 1.0}}, "evaluation": {"scores": ["em"]}}  # of a judge
    config.write_text(yaml.safe_dump({**values, **free, "questions": splits}))
    before = os.environ.get(KEY)
    os.environ[KEY] = secrets.token_hex(16)
    log = folder / "serve.log"
    try:
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "ratchet", "models", "serve", "--config", str(config)],
                cwd=ROOT,
                env=preloaded(OMP_NUM_THREADS="1", **UNCOMPILED),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            assert process.stdout
            line = process.stdout.readline()  # comes when the server is ready
            assert line.startswith("export "), log.read_text()
            url = line.strip().partition("=")[2]
            yield ModelConfig.model_validate(model | {"url": url})
        finally:
            kill(process)
            process.communicate()
        wait_for(lambda: not server_processes(int(url.rpartition(":")[2].partition("/")[0])))
    finally:
        os.environ.pop(KEY)
        if before is not None:
            os.environ[KEY] = before


@contextmanager
def serving_poolers(folder: Path, *models: Path) -> Iterator[list[str]]:
    """Servers of encoders and cross-encoders; the addresses of their APIs."""
    ports = [free_port() for _ in models]
    arguments = {"host": "127.0.0.1", "dtype": "float32", **COMPUTING}
    words = ["--enforce-eager", *(word for key, value in arguments.items() for word in (f"--{key}", str(value)))]
    log = folder / "vllm.log"
    own = [[f"--model={model}", f"--port={port}", *words] for model, port in zip(models, ports, strict=True)]
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(VLLM), "-c", FORKED, json.dumps(own)],
            env=preloaded(OMP_NUM_THREADS="1", **UNCOMPILED),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        for port in ports:
            wait_for(lambda port=port: _healthy(port), process=process)  # type: ignore[misc]
        yield [f"http://127.0.0.1:{port}/v1" for port in ports]
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx.TransportError:
        return False


def kill_tree(port: int) -> None:
    """SIGKILL every process of the server at a port at once: all of them are in one session of its own."""
    [leader] = server_processes(port)
    os.killpg(leader, signal.SIGKILL)


def server_processes(port: int) -> list[int]:
    """The first process of vLLM's server at a port, if there is one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        pid = int(path.parent.name)
        if str(port) in words and "vllm.entrypoints.openai.api_server" in words and _leads(pid):
            found.append(pid)
    return found


def _leads(pid: int) -> bool:
    """Whether it is the first of its session and a server, and not the subreaper that runs it."""
    try:
        return os.getsid(pid) == pid and b"subreaper.py" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
