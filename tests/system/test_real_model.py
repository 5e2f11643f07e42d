"""The demo's own config and the real SmolLM2, cut down to a few questions: the loop that users run, in a minute."""

import json
from pathlib import Path

import pytest

from ratchet.core.config import load_config
from ratchet.core.files import read_segments
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.evaluation.arms import read_arms
from ratchet.inference.adapters import adapter_digest
from ratchet.training.labels import labels_of
from ratchet.training.rows import check_rows, read_rows, table_rows
from tests.helpers.experiment import command


@pytest.mark.model
@pytest.mark.slow
def test_a_small_round_of_the_demo(tmp_path: Path) -> None:
    overrides = [
        f"run={tmp_path / 'run'}",
        f"index.path={tmp_path / 'index'}",
        "questions.train.rows=[0, 1]",
        "questions.test.rows=[0, 1]",
        "system.settings.max_calls=3",
        "sampling.samples=2",
        "sampling.explore.samples=1",
        "rewards.select.min_reward=-1",  # two samples need not hold a good one
        "training.max_steps=1",
        "training.batch_size=1",
        "training.micro_batch=1",
        "evaluation.baselines={}",
    ]
    done = command("selftrain.py", "--config", "configs/demo.yaml", *(word for o in overrides for word in ("--set", o)))
    assert done.returncode == 0, done.stdout
    one = RunFolder(tmp_path / "run").round(1)

    sampled = {t.key: t for t in read_segments(one.trajectories, Trajectory)}
    assert len(sampled) == 2 and all(t.policy == "base" for t in sampled.values())
    # Calls that a grammar forces whole compute no prompt: the coordinator's, and the query of an exploring sample.
    calls = [
        call
        for t in sampled.values()
        for call in t.model_calls
        if call.role != "coordinator" and not (t.explored and "search_query" in call.text)
    ]
    assert sum(call.cached_tokens for call in calls) > 0.4 * sum(call.prompt_tokens for call in calls)

    labels = labels_of(load_config(tmp_path / "run/config.yaml"))
    assert check_rows(table_rows(read_rows(one.rows).table), sampled, labels) > 0

    results = json.loads((one.evaluation / "results.json").read_text())
    assert [arm["name"] for arm in results["arms"]] == ["base", "adapter"]
    trained = list(read_segments(read_arms(one, "test")["adapter"].folder, Trajectory))
    assert len(trained) == 1 and {t.policy for t in trained} == {adapter_digest(one.adapter)}
