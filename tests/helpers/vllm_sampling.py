"""A small round that is sampled with an adapter through a real vLLM server, which is killed meanwhile."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from ratchet.files import read_segments
from ratchet.records import Trajectory
from ratchet.runfolder import RunFolder
from tests.helpers.experiment import ROOT, environment
from tests.helpers.vllm_real import kill_tree, server_processes, vllm_model, wait_for

QUESTIONS, SAMPLES = 4, 2


@dataclass(frozen=True)
class Sampled:
    """How it went."""

    status: int
    said: str
    """What the command printed on stderr."""
    log: str
    """The server's log."""
    before: frozenset[str]
    """Keys of the trajectories that there were at the last kill."""
    trajectories: tuple[Trajectory, ...]
    servers: tuple[int, ...]
    """Processes of the server that are still there."""


def make_config(folder: Path, model: Path, max_context: int = 1536) -> Path:
    """The demo's, with few questions and short answers, and its model served by vLLM."""
    values = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    values["run"], values["index"]["path"] = str(folder / "run"), str(folder / "index")
    values["models"]["agent"] = vllm_model(str(model), max_context, lora_rank=8) | {"timeout": 400.0}
    values["questions"]["train"]["rows"] = [0, QUESTIONS]
    values["system"]["settings"]["max_calls"] = 3
    values["system"]["roles"]["default"]["max_tokens"] = 24
    # Three at a time, so that there is a middle.
    values["sampling"] = {"samples": SAMPLES, "temperature": 0.7, "concurrency": 3}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def make_adapter(folder: Path, model: Path) -> Path:
    """A random one, large enough to change what is said."""
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    peft = get_peft_model(base, LoraConfig(r=8, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, weight in peft.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    peft.save_pretrained(folder)
    return folder


def sample_and_kill(
    config: Path, run: Path, adapter: Path, kills: Sequence[tuple[int, float]], server: tuple[str, Path] | None = None
) -> Sampled:
    """Sample into the folder `run`; kill the server once there are so many trajectories, and so many seconds later.

    `server`: the address and the log of one that runs and that another command starts again. By default, the command
    that serves the config's model runs the sampling.
    """
    options = ["--config", str(config), "--set", f"run={run}"]
    sample = [sys.executable, "-m", "sampling", *options, "--adapter", str(adapter)]
    serve = [sys.executable, "-m", "inference", "serve", *options, "--"]
    log, store = run / "servers" / "agent-1.log", RunFolder(run).round(1).trajectories
    variables = environment()
    if server:
        serve, log, variables["RATCHET_URL_AGENT"] = [], server[1], server[0]
    before: frozenset[str] = frozenset()
    ports: list[int] = []
    with (run.parent / f"{run.name}.errors").open("w+") as errors:
        process = subprocess.Popen(
            [*serve, *sample],
            cwd=ROOT,
            env=variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            for count, seconds in kills:
                wait_for(lambda count=count: len(_keys(store)) >= count, process, 500)
                time.sleep(seconds)
                ports = [int(found) for found in re.findall(r"--port (\d+)", log.read_text())]
                kill_tree(ports[-1])
                before = _keys(store)
            process.communicate(timeout=600)
        finally:
            process.terminate()
            process.communicate(timeout=60)
        errors.seek(0)
        said = errors.read()
    return Sampled(
        process.returncode,
        said,
        log.read_text(),
        before,
        tuple(read_segments(store, Trajectory)),
        tuple(pid for port in ports for pid in server_processes(port)),
    )


def _keys(folder: Path) -> frozenset[str]:
    return frozenset(one.key for one in read_segments(folder, Trajectory))
