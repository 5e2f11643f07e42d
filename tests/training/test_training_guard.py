"""Training stops where its questions are evaluated, and leaves digests of them beside the adapter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands.train import train_round
from ratchet.errors import UserError
from tests.helpers.world import make_run


def test_training_on_test_questions_stops_before_anything_is_done(tmp_path: Path) -> None:
    _, config, folder = make_run(tmp_path)
    questions = config.questions.model_copy(update={"test": config.questions.train})
    with pytest.raises(UserError, match=r"12 of the 12 questions of questions\.test are in questions\.train as well"):
        train_round(config.model_copy(update={"questions": questions}), 1)
    assert not folder.training.exists() and not folder.rows.exists() and not (config.folder / "config.yaml").exists()


def test_an_adapter_says_which_questions_it_was_trained_on(tmp_path: Path) -> None:
    _, config, folder = make_run(tmp_path, questions=4, max_steps=1)
    train_round(config, 1)
    kept = json.loads((folder.adapter / "training_questions.json").read_text())
    assert kept["splits"]["train"]["count"] == len(kept["questions"]) == 4 and kept["documents"] == []
