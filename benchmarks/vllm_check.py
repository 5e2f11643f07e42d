"""The steps of benchmarks/gpu_check.py that need vLLM and a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import yaml

from benchmarks.training import SHAPES

MODEL = Path("models/smollm2-135m-instruct")
SERVE_SECONDS, DEMO_SECONDS = 300, 540


class StepFailed(Exception):
    """A step that did not end with a result."""


def config_on_gpu(root: Path) -> dict[str, Any]:
    """configs/demo_vllm.yaml with vLLM of this environment, in bfloat16 on the GPU, 128 requests wide."""
    config: dict[str, Any] = yaml.safe_load((root / "configs" / "demo_vllm.yaml").read_text())
    if not (root / MODEL / "model.safetensors").exists():
        raise StepFailed(f"{MODEL} is not there: run `make model` where there is a network")
    agent = config["models"]["agent"] | {"dtype": "bfloat16", "device": "auto", "concurrency": 128}
    agent["serve"] = {}
    del agent["send_seed"]
    return config | {"models": {"agent": agent}}


def run(root: Path, folder: Path, config: dict[str, Any], command: list[str]) -> subprocess.Popen[str]:
    """Start a command on a config in `folder`; its output goes to `folder`/output."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config | {"run": str(folder / "run"), "index": config["index"]}))
    filled = [str(path) if word == "CONFIG" else word for word in command]
    with (folder / "output").open("w") as out:
        return subprocess.Popen([sys.executable, *filled], cwd=root, stdout=out, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str], folder: Path, seconds: float) -> str:
    """Wait for a command; the time it took. Raises StepFailed with the last line of its output."""
    began = time.monotonic()
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait(60)
        raise StepFailed(f"not finished after {seconds:.0f} s") from None
    if status:
        last = ((folder / "output").read_text().strip().splitlines() or ["it said nothing"])[-1]
        raise StepFailed(f"exit status {status}: {last[:120]}")
    return f"finished in {time.monotonic() - began:.0f} s"


def two_servers_share(root: Path) -> str:
    """A server in the shape of 7B parameters and one of 135M, with drawn weights, ready at the same time."""
    config = config_on_gpu(root)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {}
        for role, shape in (("agent", "qwen2.5-7b"), ("judge", "smollm2-135m")):
            path = folder / role
            SHAPES[shape]().save_pretrained(path)
            for file in (root / MODEL).glob("*token*"):
                shutil.copy(file, path)
            arguments = {"load-format": "dummy"}
            models[role] = config["models"]["agent"] | {"path": str(path), "serve": {"arguments": arguments}}
        served = [
            *("-m", "ratchet", "models", "serve", "--config", "CONFIG", "--models", "agent,judge", "--"),
            sys.executable,
        ]
        process = run(root, folder, config | {"models": models}, [*served, "-c", "print('both are ready')"])
        return end(process, folder, SERVE_SECONDS)


def demo_survives_a_killed_server(root: Path) -> str:
    """selftrain.py of the demo; the first process of vLLM that is there while it samples is killed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = run(root, folder, config_on_gpu(root), ["selftrain.py", "--config", "CONFIG"])
        killed = kill_server(process, folder / "run" / "round-1" / "trajectories", DEMO_SECONDS / 2)
        said = end(process, folder, DEMO_SECONDS)
        if not killed:
            raise StepFailed(f"{said}, and no server was found to kill")
        return f"{said}, one server killed"


def kill_server(process: subprocess.Popen[str], trajectories: Path, seconds: float) -> bool:
    """Kill a vLLM server below `process` once there are trajectories; whether there was one."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if any(trajectories.glob("*.jsonl")):
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    words = child.cmdline()
                except psutil.Error:
                    continue
                # the process that watches over the server has the server's words among its own, further behind
                if words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]:
                    child.kill()
                    return True
        time.sleep(0.5)
    return False
