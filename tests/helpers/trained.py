"""A trained round of a tiny model, as the exports meet it."""

import json
from pathlib import Path

from ratchet.commands.train import train_round
from ratchet.core.files import write_jsonl
from ratchet.core.records import Score
from ratchet.rewards.store import record_settings, score_file
from tests.helpers.stored import store
from tests.helpers.world import make_run, sample_trajectory

QUESTIONS = 12


def make_trained(folder: Path) -> Path:
    """The config of a trained round in `folder`, of which question q0 kept nothing."""
    path, config, one = make_run(folder, QUESTIONS, max_steps=10, eval_steps=5)
    made = [sample_trajectory(number, number) for number in range(QUESTIONS)]
    (one.trajectories / "a.jsonl").unlink()
    store(one.trajectories, made)
    selection = json.loads(one.selection.read_text())
    selection["questions"][0] |= {"kept": [], "cause": "reward_too_low", "reason": "low"}
    one.selection.write_text(json.dumps(selection))
    record_settings(one.scores, "f1", {})
    scores = [Score(trajectory=trajectory.key, name="f1", value=n / 10) for n, trajectory in enumerate(made[:10])]
    write_jsonl(score_file(one.scores, "f1", {}), scores)
    train_round(config, 1)
    return path
