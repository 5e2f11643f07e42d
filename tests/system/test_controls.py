"""A run with controls through the real command: what is trained and evaluated for them, and that it is done once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from inference.adapters import adapter_digest
from ratchet.runfolder import RunFolder
from rounds.ledger import latest_entries
from rounds.records import StageKey
from tests.helpers.experiment import command, make_experiment


@pytest.mark.slow
def test_controls_may_be_asked_for_later_and_are_trained_and_evaluated_once(tmp_path: Path) -> None:
    path = make_experiment(tmp_path, questions=4)
    plain = command("selftrain.py", "--config", str(path))
    assert plain.returncode == 0, plain.stdout
    run = RunFolder(tmp_path / "run")
    before = latest_entries(run)
    settings = yaml.safe_load(path.read_text())
    settings["evaluation"]["controls"] = ["base-again", "random"]
    path.write_text(yaml.safe_dump(settings))

    status = command("selftrain.py", "status", "--config", str(path)).stdout
    assert "It resumes with 'train: random selection' of round 1" in status
    done = command("selftrain.py", "--config", str(path))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": done before") == 4, "index, sample, score and train"
    assert "base again against base: gained" in done.stdout
    entries = latest_entries(run)
    assert all(entries[key] == before[key] for key in before if key.id in ("index", "sample", "score", "train"))
    control = entries[StageKey(1, "train.random")]
    assert control.facts["kept"] == entries[StageKey(1, "score")].facts["kept"] and control.facts["steps"] == 4
    assert control.outputs["adapter"] == entries[StageKey(1, "evaluate")].inputs["control"]

    results = json.loads((run.round(1).evaluation / "results.json").read_bytes())
    assert [arm["name"] for arm in results["arms"]] == ["base", "adapter", "random selection", "base again"]
    assert results["arms"][2]["policy"] == adapter_digest(run.round(1).control("random").adapter)
    assert "random trajectories" in results["verdict"]
    again = command("selftrain.py", "--config", str(path))
    assert again.stdout.count(": done before") == 7
