"""Training stops where its questions are evaluated, leaves digests of them beside the adapter, and deletes nothing."""

import json
import shutil
from pathlib import Path

import pytest

from ratchet.commands.train import train_round
from ratchet.core.errors import UserError
from ratchet.core.files import write_json
from ratchet.core.runfolder import RoundFolder
from ratchet.training.adapter import set_aside
from tests.helpers.world import make_run


def test_training_on_test_questions_stops_before_anything_is_done(tmp_path: Path) -> None:
    _, config, folder = make_run(tmp_path)
    questions = config.questions.model_copy(update={"test": config.questions.train})
    with pytest.raises(UserError, match=r"12 of the 12 questions of questions\.test are in questions\.train as well"):
        train_round(config.model_copy(update={"questions": questions}), 1)
    assert not folder.training.exists() and not folder.rows.exists() and not (config.folder / "config.yaml").exists()


@pytest.mark.slow
def test_an_adapter_says_which_questions_it_was_trained_on(tmp_path: Path) -> None:
    _, config, folder = make_run(tmp_path, questions=4, max_steps=1)
    train_round(config, 1)
    kept = json.loads((folder.adapter / "training_questions.json").read_text())
    assert kept["splits"]["train"]["count"] == len(kept["questions"]) == 4 and kept["documents"] == []


def test_what_is_set_aside_gets_a_free_name_though_earlier_ones_were_deleted(tmp_path: Path) -> None:
    folder = RoundFolder(tmp_path / "round-1")

    def train_again(seed: int) -> set[str]:
        write_json(folder.training / "training.json", {"made_of": {"seed": seed}})
        set_aside(folder, {"seed": seed + 1})
        return {path.name for path in folder.path.iterdir()}

    assert train_again(1) | train_again(2) == {"training.outdated-1", "training.outdated-2"}
    shutil.rmtree(folder.path / "training.outdated-1")
    assert train_again(3) == {"training.outdated-1", "training.outdated-2"}
