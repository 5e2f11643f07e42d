"""Sampling through a real vLLM server that is killed in the middle: it comes back, and nothing is lost or repeated."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from inference.adapters import adapter_digest
from ratchet.files import read_segments
from ratchet.records import Trajectory
from ratchet.runfolder import RunFolder
from tests.helpers.experiment import ROOT, command, environment
from tests.helpers.vllm_real import kill_tree, server_processes, vllm_model, wait_for

QUESTIONS, SAMPLES = 4, 2


def make_config(folder: Path, model: Path) -> Path:
    """The demo's, with few questions and short answers, and its model served by vLLM."""
    values = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    values["run"], values["index"]["path"] = str(folder / "run"), str(folder / "index")
    values["models"]["agent"] = vllm_model(str(model), max_context=1536, lora_rank=8) | {"timeout": 400.0}
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


@pytest.mark.vllm
@pytest.mark.model
@pytest.mark.slow
def test_a_server_killed_in_the_middle_of_sampling(smollm2: Path, tmp_path: Path) -> None:
    config, adapter = make_config(tmp_path, smollm2), make_adapter(tmp_path / "adapter", smollm2)
    built = command("-m", "index_build", "--config", str(config))
    assert built.returncode == 0, built.stdout
    run = RunFolder(tmp_path / "run")
    one = run.round(1)
    sample = [sys.executable, "-m", "sampling", "--config", str(config), "--adapter", str(adapter)]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "inference", "serve", "--config", str(config), "--", *sample],
            cwd=ROOT,
            env=environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        wait_for(lambda: len(list(read_segments(one.trajectories, Trajectory))) >= 2, process, 500)
        log = run.path / "servers" / "agent-1.log"
        port = int(re.findall(r"--port (\d+)", log.read_text())[-1])
        kill_tree(port)
        before = {t.key for t in read_segments(one.trajectories, Trajectory)}
        out, _ = process.communicate(timeout=600)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    said = (tmp_path / "errors").read_text()
    assert process.returncode == 0, said
    assert "agent-1 ended with status 137" in said and said.count("agent-1 is ready") == 2, said

    trajectories = list(read_segments(one.trajectories, Trajectory))
    keys = [t.key for t in trajectories]
    assert len(keys) == len(set(keys)) == QUESTIONS * SAMPLES, out
    assert 2 <= len(before) < len(keys), "the server was not killed in the middle"
    assert before < set(keys)
    # All of them by the adapter, also after the restart, which had forgotten it.
    assert {t.policy for t in trajectories} == {adapter_digest(adapter)}
    assert "failed" not in {t.status for t in trajectories}
    loads = re.findall(r"POST /v1/load_lora_adapter[^\n]* 200", log.read_text())
    assert len(loads) == 2, loads
    assert not server_processes(port)
