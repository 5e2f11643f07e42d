"""A sweep as a user runs it: several processes at once, one of them killed, and the tables of an undisturbed one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands.sweep import sweep
from evaluation.sweep.records import SweepResults
from inference.adapters import adapter_digest
from ratchet.files import read_segments
from ratchet.records import Trajectory
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.experiment import ROOT, command, kill, make_experiment, preloaded


def add_adapters(run: Path) -> None:
    """Two rounds' adapters: the script does not look at them, but its seeds do."""
    for number in (1, 2):
        save_adapter(run / f"round-{number}" / "adapter", number)


def outcome(run: Path) -> dict[str, object]:
    """What a sweep came to, without how long it took and where."""
    results = SweepResults.model_validate_json((run / "sweep" / "sweep.json").read_bytes())
    cells = {
        f"{cell.stage} {cell.arm.policy}": (
            cell.arm.statuses,
            {name: found for name, found in cell.arm.measures.items() if name != "seconds"},
            cell.difference,
            cell.p_holm,
        )
        for cell in results.cells
    }
    return {**cells, "choice": [choice.policy for choice in results.choices], "missing": results.missing}


@pytest.mark.slow
def test_a_sweep_in_parts_with_a_kill_equals_an_undisturbed_one(tmp_path: Path) -> None:
    config = make_experiment(tmp_path, questions=6, delay=0.05)
    built = command("-m", "index_build", "--config", str(config))
    assert built.returncode == 0, built.stdout
    calm, noisy = tmp_path / "calm", tmp_path / "noisy"
    add_adapters(calm)
    add_adapters(noisy)
    whole = command("-m", "evaluation", "sweep", "--config", str(config), "--set", f"run={calm}")
    assert whole.returncode == 0, whole.stdout

    arguments = ["--config", str(config), "--set", f"run={noisy}"]
    parts = [
        subprocess.Popen(
            [sys.executable, "-m", "evaluation", "sweep", "cell", part, *arguments],
            cwd=ROOT,
            env=preloaded(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for part in ("0/2", "1/2")
    ]
    try:
        victim = f"arms/dev/*/{adapter_digest(noisy / 'round-1' / 'adapter')}/part-*.jsonl"
        deadline = time.monotonic() + 90
        while not any(path.stat().st_size for path in noisy.glob(victim)):
            assert time.monotonic() < deadline and parts[1].poll() is None, "the second part never began"
            time.sleep(0.02)
        kill(parts[1])
        assert [process.wait() for process in parts] == [0, -signal.SIGKILL]
    finally:
        for process in parts:
            if process.poll() is None:
                kill(process)

    with pytest.raises(SystemExit) as early:
        sweep(["merge", *arguments])
    assert early.value.code == 1
    assert outcome(noisy)["missing"] == ("noisy-round-1/mrag/dev: not all sampled",)
    again = command("-m", "evaluation", "sweep", *arguments)
    assert again.returncode == 0, again.stdout
    assert outcome(noisy) == outcome(calm)
    every = list(trajectories(noisy))
    assert len(every) == len(set(every)), "nothing was sampled twice"
    assert set(every) == set(trajectories(calm)), "nothing was lost"


def trajectories(run: Path) -> list[str]:
    folders = {path.parent for path in (run / "arms").rglob("part-*.jsonl")}
    return [t.key for folder in folders for t in read_segments(folder, Trajectory)]
