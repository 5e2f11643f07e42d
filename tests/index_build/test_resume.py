"""Builds in several processes, and builds that are killed: what the next one makes of the rest."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.errors import UserError
from ratchet.index_build import build as builder
from ratchet.retrieval.loader import open_folder
from tests.helpers.building import SMALL, build, corpus, queries, results, tree, with_sources, write_config
from tests.helpers.experiment import ROOT, preloaded, running
from tests.helpers.tiny_index import index_config, write_documents
from tests.helpers.waiting import wait_for
from tests.helpers.zygote import Zygote, shared_zygote

KILLED = signal.SIGKILL


@pytest.fixture
def zygote() -> Zygote:
    return shared_zygote()


def processes_of(group: int) -> list[int]:
    """The processes of a process group that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, its_group = (path / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(int(path.name))
    return found


def wait_until_gone(group: int) -> None:
    wait_for(lambda: not processes_of(group))


@pytest.mark.slow
def test_a_sigkill_at_every_step_of_adding(tmp_path: Path, zygote: Zygote) -> None:
    """The index stays what it was until it is the new one, and no moment is missed by chance."""
    config = index_config(tmp_path, corpus(6), **SMALL)
    more = with_sources(config, write_documents(tmp_path / "more.jsonl", corpus(6, 1, name="e")))
    assert zygote.build(config, "never")[0] == 0
    before = results(config.path, queries(3))
    states, wanted = [], {}
    steps, step = 1, 0
    while step < steps:
        here = str(tmp_path / f"at-{step}")
        shutil.copytree(config.path, here)
        new = more.model_copy(update={"path": here})
        if step == 0:
            steps = zygote.build(new, "never")[1]
            after, wanted = results(here, queries(3)), tree(Path(here))
        else:
            assert zygote.build(new, f"step{step}")[0] == KILLED
            states.append(results(here, queries(3)))
            build(new)
            assert tree(Path(here)) == wanted, step
        step += 1
    assert before != after
    assert all(state in (before, after) for state in states)
    assert states[0] == before and len(states) > 30


def run(config: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ratchet", "index", "--config", str(config), *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=preloaded()
    )


def importing(command: subprocess.Popen[str]) -> list[int]:
    """The workers that import our modules."""
    try:
        parent = running(command)
    except (FileNotFoundError, ValueError):  # it has not begun
        return []
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    started = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return [int(child) for child in started if "_pydantic_core" in Path(f"/proc/{child}/maps").read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["importing", "building"])
def test_ctrl_c_does_not_wait_for_the_workers_shards(tmp_path: Path, workers: str) -> None:
    config = write_config(tmp_path, [write_documents(tmp_path / "d.jsonl", corpus(4000, words=100))], **SMALL)
    process = run(config, "--workers", "2", "--set", "index.shard_documents=2000")
    building = tmp_path / "index" / "shards"
    wait_for(
        lambda: (
            importing(process)
            if workers == "importing"
            else any(path.stat().st_size for path in building.glob(".*.tmp/texts.utf8"))
        ),
        60,
        process,
    )
    for worker in importing(process):  # the worker's turn comes first
        os.kill(worker, signal.SIGINT)
    time.sleep(0.2)
    os.killpg(running(process), signal.SIGINT)  # as a terminal does: to all processes
    _, errors = process.communicate(timeout=300)
    wait_until_gone(running(process))
    assert process.returncode == 130 and "run the same command again" in errors and "Traceback" not in errors
    assert not list(building.glob("[0-9]*"))


@pytest.mark.slow
def test_jobs_side_by_side_build_the_same_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of an array begin together: none of them sees the others' shards when it begins. Workers change nothing."""
    config = index_config(tmp_path, corpus(50), shard_documents=8, **SMALL)
    whole = config.model_copy(update={"path": str(tmp_path / "whole")})
    assert build(whole, workers=2) == 7
    real, began = builder.build_planned_shard, list[int]()

    def piece(*arguments: Any) -> None:
        if not began:
            began.append(1)
            assert build(config, job=(1, 2)) == 3
            with pytest.raises(UserError, match="only a part of an index"):
                open_folder(config.path)
        real(*arguments)

    monkeypatch.setattr(builder, "build_planned_shard", piece)
    assert build(config, job=(0, 2)) == 4
    assert tree(Path(config.path)) == tree(Path(whole.path))
