"""The whole loop with one adapter for each role: the folder takes a single adapter's place everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from inference.adapters import adapter_digest, single_adapters
from ratchet.files import read_segments
from ratchet.records import Trajectory
from ratchet.runfolder import RunFolder
from rounds.ledger import latest_entries
from rounds.records import StageKey
from tests.helpers.experiment import command, make_experiment


@pytest.mark.slow
def test_a_round_samples_trains_evaluates_and_reports_with_an_adapter_for_each_role(tmp_path: Path) -> None:
    path = make_experiment(tmp_path, questions=4)
    settings = yaml.safe_load(path.read_text())
    settings["training"] |= {"adapters": "role", "max_steps": 2}
    path.write_text(yaml.safe_dump(settings))
    done = command("selftrain.py", "--config", str(path))
    assert done.returncode == 0, done.stdout

    run = RunFolder(tmp_path / "run")
    adapter = run.round(1).adapter
    digest = adapter_digest(adapter)
    assert {Path(one).name for one in single_adapters(adapter)} >= {"coordinator", "answerer"}
    results = json.loads((run.round(1).evaluation / "results.json").read_bytes())
    assert [arm["policy"] for arm in results["arms"]] == ["base", digest]
    entries = latest_entries(run)
    assert (
        entries[StageKey(1, "train")].outputs["adapter"] == entries[StageKey(1, "evaluate")].inputs["adapter"] == digest
    )
    assert "## Results" in (adapter / "README.md").read_text(), "the card has the results of this adapter"
    assert "Training: coordinator" in run.report.read_text()

    again = command("selftrain.py", "--config", str(path))
    assert again.returncode == 0 and again.stdout.count(": done before") == 6, again.stdout
    sampled = command("-m", "sampling", "--config", str(path), "--round", "2", "--adapter", str(adapter))
    assert sampled.returncode == 0, sampled.stdout
    assert {t.policy for t in read_segments(run.round(2).trajectories, Trajectory)} == {digest}
