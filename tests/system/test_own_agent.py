"""A whole round with a program: sampled, killed, resumed, scored and trained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ratchet.records import Trajectory
from ratchet.selection import Selection
from sampling.store import TrajectoryStore
from tests.agents.external.test_program import HEAD
from tests.helpers.experiment import ROOT, command, kill, make_experiment, preloaded, write_lines
from tests.helpers.waiting import wait_for
from training.rows import build_rows, check_rows

pytestmark = [pytest.mark.slow, pytest.mark.server]
PROGRAM = """
found = post(task["search_url"], query=task["question"], k=1)["passages"]
print(json.dumps({"answer": ask(found[0]["text"] + " " + task["question"])}))
"""


def experiment(folder: Path, delay: float) -> Path:
    """An experiment whose system is a program, and whose model says one of two things."""
    path = make_experiment(folder, questions=3)
    (folder / "program.py").write_text(HEAD + PROGRAM)
    write_lines(folder / "script.jsonl", {"match": "harbour", "replies": ["Ada Torrin", "nobody"], "delay": delay})
    config = yaml.safe_load(path.read_text())
    settings = {"command": [sys.executable, "-S", str(folder / "program.py")]}
    config["system"] = {"name": "external", "settings": settings, "roles": {"default": {"max_tokens": 32}}}
    path.write_text(yaml.safe_dump(config))
    done = command("-m", "index_build", "--config", str(path))
    assert done.returncode == 0, done.stdout
    return path


def stored(folder: Path) -> list[Trajectory]:
    return list(TrajectoryStore(folder / "run/round-1/trajectories").read())


def test_a_killed_run_of_programs_resumes_and_its_rows_are_what_was_sampled(tmp_path: Path) -> None:
    config = experiment(tmp_path, delay=0.3)
    part = tmp_path / "run/round-1/trajectories/part-0.jsonl"
    words = [sys.executable, "-m", "sampling", "--config", str(config), "--set", "sampling.concurrency=2"]
    first = subprocess.Popen(words, cwd=ROOT, env=preloaded(), stderr=subprocess.DEVNULL)
    wait_for(lambda: part.exists() and len(part.read_bytes().splitlines()) >= 2, 240, first)
    kill(first)
    before = part.read_bytes().splitlines()
    done = command(*words[1:])
    assert done.returncode == 0, done.stdout
    assert part.read_bytes().splitlines()[: len(before) - 1] == before[:-1], "what was finished was not sampled again"
    trajectories = stored(tmp_path)
    assert len(trajectories) == 12 and {one.status for one in trajectories} == {"finished"}
    assert {one.answer for one in trajectories} == {"Ada Torrin", "nobody"}

    scored = command("-m", "rewards", "--config", str(config))
    assert scored.returncode == 0, scored.stdout
    kept = Selection.model_validate_json((tmp_path / "run/round-1/selection.json").read_text()).kept
    rows, _ = build_rows(trajectories, kept, 1000)
    assert rows and check_rows(rows, {one.key: one for one in trajectories}) == len(rows)
