"""A round whose real vLLM server is killed while it samples, and killed with the whole loop while it evaluates."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from ratchet.files import read_segment
from ratchet.records import Trajectory
from ratchet.runfolder import RunFolder
from tests.helpers.experiment import ROOT, preloaded
from tests.helpers.thinking import make_thinking_experiment
from tests.helpers.vllm_real import UNCOMPILED, kill_tree, server_processes, vllm_model
from tests.helpers.waiting import wait_for

SECONDS = 600
"""For what takes vLLM a minute on an idle machine."""


@pytest.mark.vllm
@pytest.mark.slow
def test_a_round_resumes_and_samples_nothing_twice(tmp_path: Path) -> None:
    config = _make_config(tmp_path)
    run = RunFolder(tmp_path / "run")
    log = run.path / "servers" / "agent-1.log"
    sampled, evaluated = "round-1/trajectories/*.jsonl", "arms/*/*/*/*.jsonl"
    with _selftrain(config, tmp_path / "first") as loop:
        wait_for(lambda: len(_keys(run, sampled)) >= 2, SECONDS, loop)
        kill_tree(_port(log))
        before = _keys(run, sampled)
        wait_for(lambda: len(_keys(run, evaluated)) >= 2, SECONDS, loop)
        os.killpg(loop.pid, signal.SIGKILL)
        port = _port(log)
        wait_for(lambda: not server_processes(port))
        begun = _keys(run, evaluated)
    assert "agent-1 ended with status 137" in (tmp_path / "first").read_text()
    with _selftrain(config, tmp_path / "second") as loop:
        status = loop.wait(SECONDS)
    said = (tmp_path / "second").read_text()
    assert status == 0 and "Traceback" not in said, said
    assert before < (made := _keys(run, sampled)) and begun < (played := _keys(run, evaluated)), "killed too late"
    assert made.total() == len(made) == 8, "trajectories are lost, or were sampled twice"
    assert played.total() == len(played)
    assert run.report.is_file()


def _make_config(folder: Path) -> Path:
    """One round of a tiny model, without a judge, whose trajectories are sampled one after the other."""
    path = make_thinking_experiment(folder, **vllm_model(str(folder / "thinker"), 2048, lora_rank=16))
    values = yaml.safe_load(path.read_text())
    del values["models"]["judge"]
    values["rounds"]["count"] = 1
    values["rewards"]["weights"] = {"f1": 1.0}
    values["sampling"]["concurrency"] = 1
    path.write_text(yaml.safe_dump(values))
    return path


@contextmanager
def _selftrain(config: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The loop in a process group of its own, with what it prints in `log`."""
    words = [sys.executable, "selftrain.py", "--config", str(config)]
    with log.open("w") as said:
        loop = subprocess.Popen(
            words, cwd=ROOT, env=preloaded(**UNCOMPILED), stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield loop
        finally:
            if loop.poll() is None:
                os.killpg(loop.pid, signal.SIGTERM)
            loop.wait(SECONDS)


def _keys(run: RunFolder, files: str) -> Counter[tuple[Path, str]]:
    """The trajectories by folder and key, each with its number of lines; without those that failed, as one may whose
    answer the killed server had begun, and are sampled again."""
    read = ((path, one) for path in run.path.glob(files) for one in read_segment(path, Trajectory))
    return Counter((path.parent, one.key) for path, one in read if one.status != "failed")


def _port(log: Path) -> int:
    return int(re.findall(r"--port (\d+)", log.read_text())[-1])
