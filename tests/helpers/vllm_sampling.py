"""A small round that is sampled with an adapter through a real vLLM server, which is killed meanwhile."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from ratchet.files import read_segments
from ratchet.records import Trajectory
from ratchet.runfolder import RunFolder
from tests.helpers.experiment import ROOT, preloaded
from tests.helpers.vllm_real import kill_tree, vllm_model
from tests.helpers.waiting import wait_for

QUESTIONS, SAMPLES = 3, 2


@dataclass(frozen=True)
class Sampled:
    """How it went."""

    status: int
    said: str
    """What the command printed on stderr."""
    log: str
    """The server's log."""
    before: frozenset[str]
    """Keys of the trajectories that there were at the kill."""
    trajectories: tuple[Trajectory, ...]


def make_config(folder: Path, model: Path, max_context: int = 1536) -> Path:
    """The demo's, with few questions and short answers, and its model served by vLLM."""
    values = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    values["run"], values["index"]["path"] = str(folder / "run"), str(folder / "index")
    values["models"]["agent"] = vllm_model(str(model), max_context, lora_rank=8) | {"timeout": 400.0}
    values["questions"]["train"]["rows"] = [0, QUESTIONS]
    values["system"]["settings"] |= {"max_calls": 2, "documents_per_turn": 1}
    values["system"]["roles"]["default"]["max_tokens"] = 24
    # Three at a time, so that there is a middle.
    values["sampling"] = {"samples": SAMPLES, "temperature": 0.7, "concurrency": 3}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def sample_and_kill(config: Path, run: Path, adapter: Path, url: str, log: Path) -> Sampled:
    """Sample into the folder `run`; kill the server, which another command starts again, once there are two
    trajectories. `url`, `log`: the server's."""
    sample = [sys.executable, "-m", "sampling", "--config", str(config), "--set", f"run={run}"]
    store = RunFolder(run).round(1).trajectories
    with (run.parent / f"{run.name}.errors").open("w+") as errors:
        process = subprocess.Popen(
            [*sample, "--adapter", str(adapter)],
            cwd=ROOT,
            env=preloaded(RATCHET_URL_AGENT=url),
            text=True,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            wait_for(lambda: len(_keys(store)) >= 2, 500, process)
            kill_tree(int(re.findall(r"--port (\d+)", log.read_text())[-1]))
            before = _keys(store)
            process.communicate(timeout=600)
        finally:
            process.terminate()
            process.communicate(timeout=60)
        errors.seek(0)
        said = errors.read()
    return Sampled(process.returncode, said, log.read_text(), before, tuple(read_segments(store, Trajectory)))


def _keys(folder: Path) -> frozenset[str]:
    return frozenset(one.key for one in read_segments(folder, Trajectory))
