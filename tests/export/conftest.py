"""A trained round of a tiny model, as the exports meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ratchet.files import write_jsonl
from ratchet.records import Score
from rewards.store import record_settings, score_file
from tests.helpers.stored import store
from tests.helpers.world import make_run, sample_trajectory
from training import recipe

QUESTIONS = 12


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config with a trained round, of which question q0 kept nothing; not to be changed."""
    path, config, folder = make_run(tmp_path_factory.mktemp("trained"), QUESTIONS, max_steps=10, eval_steps=5)
    made = [sample_trajectory(number, number) for number in range(QUESTIONS)]
    (folder.trajectories / "a.jsonl").unlink()
    store(folder.trajectories, made)
    selection = json.loads(folder.selection.read_text())
    selection["questions"][0] |= {"kept": [], "cause": "reward_too_low", "reason": "low"}
    folder.selection.write_text(json.dumps(selection))
    record_settings(folder.scores, "f1", {})
    scores = [Score(trajectory=one.key, name="f1", value=number / 10) for number, one in enumerate(made[:10])]
    write_jsonl(score_file(folder.scores, "f1", {}), scores)
    recipe.train(config, 1)
    return path


@pytest.fixture
def run_folder(trained: Path) -> Path:
    return Path(yaml.safe_load(trained.read_text())["run"])
