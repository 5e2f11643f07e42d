"""Every objective after a SIGKILL, and on two processes, against one process that nothing disturbed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ratchet.runfolder import RoundFolder
from tests.helpers.attempts import OBJECTIVES, make_attempts
from tests.helpers.experiment import kill, preloaded
from tests.helpers.world import tiny_model
from tests.training.test_processes import IN_BF16, REPO, assert_same, finish, launch, start
from training import recipe

SETTINGS: dict[str, Any] = {"batch_size": 8, "micro_batch": 2, "max_steps": 12, "eval_steps": 4, "learning_rate": 0.02}
PROCESSES = {("weighted", "cpu_ddp.yaml"), ("dpo", "cpu_fsdp.yaml"), ("kto", "cpu_ddp.yaml")}
"""What is trained by two processes: sums over rows, pairs, and a reference point over the whole step."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=list(OBJECTIVES.values()), ids=list(OBJECTIVES))
def alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RoundFolder, dict[str, Any]]:
    """The round as one process trains it, and the objective's settings."""
    settings = {**SETTINGS, **request.param}
    _, config, folder = make_attempts(tmp_path_factory.mktemp("alone"), **settings)
    recipe.train(config, 1)
    return folder, settings


def test_killed_after_a_checkpoint_it_resumes_with_the_same_curve(
    alone: tuple[RoundFolder, dict[str, Any]], tmp_path: Path
) -> None:
    whole, settings = alone
    path, config, folder = make_attempts(tmp_path, **settings)
    command = [sys.executable, "train.py", "--config", str(path)]
    env = preloaded(OMP_NUM_THREADS="1")
    process = subprocess.Popen(command, cwd=REPO, env=env, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 180
    while not (folder.training / "checkpoint-4" / "complete.json").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.002)
    kill(process)
    assert process.returncode == -signal.SIGKILL and not folder.adapter.exists()
    recipe.train(config, 1)
    assert_same(folder, whole)


@pytest.mark.parametrize("processes", ["cpu_ddp.yaml", "cpu_fsdp.yaml"])
def test_two_processes_learn_as_one_does(
    alone: tuple[RoundFolder, dict[str, Any]], tmp_path: Path, processes: str
) -> None:
    whole, settings = alone
    if (settings["objective"], processes) not in PROCESSES or "preference" in settings:
        pytest.skip("the launcher is slow, and these rows go the way of another objective's")
    path, _, folder = make_attempts(tmp_path, **settings)
    status, said = finish(launch(processes, path))
    assert status == 0, said
    assert_same(folder, whole)
    if processes == "cpu_fsdp.yaml":  # resumed under FSDP, with the reference from before
        for done in (folder.adapter, *(folder.training / name for name in ("checkpoint-12", "evaluated-12"))):
            shutil.rmtree(done, ignore_errors=True)
        status, said = finish(launch(processes, path))
        assert status == 0 and "of 12 were done before; resuming" in said, said
        assert_same(folder, whole)


def test_sharded_in_bf16_pairs_give_what_one_process_gives(tmp_path: Path) -> None:
    folders = []
    for place in ("one", "two"):
        tiny_model(tmp_path / place / "model", tied=False)
        path, _, folder = make_attempts(
            tmp_path / place, objective="dpo", **SETTINGS | {"batch_size": 12, "gradient_checkpointing": True}
        )
        one = start([sys.executable, str(IN_BF16)], path) if place == "one" else None
        status, said = finish(one or launch("cpu_fsdp.yaml", path, program=IN_BF16))
        assert status == 0, said
        folders.append(folder)
    assert_same(folders[1], folders[0])
