"""A round of a model that thinks, whose real vLLM server is killed while the adapter is evaluated. `serving` in
tests/helpers/vllm_real.py kills what started a server; tests/system/test_loop.py kills every stage of a round."""

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

from ratchet.core.files import read_segment
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RunFolder
from tests.helpers.experiment import ROOT, preloaded
from tests.helpers.thinking import check_thinking_run, make_thinking_experiment
from tests.helpers.vllm_real import UNCOMPILED, kill_tree, server_processes, vllm_model
from tests.helpers.waiting import wait_for

SECONDS = 600
"""For what takes vLLM a minute on an idle machine."""


@pytest.mark.vllm
@pytest.mark.slow
def test_a_round_goes_on_and_samples_nothing_twice(tmp_path: Path) -> None:
    config = _make_config(tmp_path)
    run = RunFolder(tmp_path / "run")
    log = run.path / "servers" / "agent.log"
    selftrain = [sys.executable, "selftrain.py", "--config", str(config)]
    served = [sys.executable, "-m", "ratchet", "models", "serve", "--config", str(config), "--", *selftrain]
    with _started(served, tmp_path / "said") as loop:
        adapted = wait_for(lambda: _folder_of_the_adapter(run), SECONDS, loop)
        wait_for(lambda: _keys(run, adapted), SECONDS, loop)
        kill_tree(_port(log))
        begun = _keys(run, adapted)
        status = loop.wait(SECONDS)
    said = (tmp_path / "said").read_text()
    assert status == 0 and "Traceback" not in said and not server_processes(_port(log)), said
    assert "agent ended with status 137" in said and said.count("agent is ready") == 2, said
    sampled, evaluated = _keys(run, "round-1/trajectories"), _keys(run, adapted)
    assert begun < evaluated, "killed too late"
    assert sampled.total() == len(sampled) == 8, "trajectories are lost, or were sampled twice"
    assert evaluated.total() == len(evaluated)
    loads = re.findall(r"POST /v1/load_lora_adapter[^\n]* 200", log.read_text().rpartition("== ")[2])
    assert len(loads) == 1, "the server that was started again had forgotten the adapter"
    check_thinking_run(config)


def _make_config(folder: Path) -> Path:
    """One round, whose trajectories are sampled one after the other."""
    path = make_thinking_experiment(folder, **vllm_model(str(folder / "thinker"), 2048))
    values = yaml.safe_load(path.read_text())
    values["sampling"]["concurrency"] = 1
    path.write_text(yaml.safe_dump(values))
    return path


@contextmanager
def _started(words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process group of its own, with what it prints in `log`."""
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


def _folder_of_the_adapter(run: RunFolder) -> str:
    """Where the trajectories of the adapter's evaluation are, below the run's folder; empty before it has begun."""
    arms = run.path.glob("arms/test/*/*/")
    return next((str(arm.relative_to(run.path)) for arm in arms if arm.name != "base"), "")


def _keys(run: RunFolder, folder: str) -> Counter[str]:
    """The trajectories by key, each with its number of lines; without those that failed, as one may whose answer the
    killed server had begun, and are sampled again."""
    read = (one for path in run.path.glob(f"{folder}/*.jsonl") for one in read_segment(path, Trajectory))
    return Counter(one.key for one in read if one.status != "failed")


def _port(log: Path) -> int:
    return int(re.findall(r"--port (\d+)", log.read_text())[-1])
