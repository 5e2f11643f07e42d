"""A run folder keeps the --set that it was made with, and later commands on it need none of them."""

import json
from pathlib import Path

import pytest

from ratchet import Experiment
from ratchet.commands.config import open_config
from ratchet.core.errors import UserError
from ratchet.core.runfolder import RunFolder
from ratchet.questions.manifest import open_run
from tests.helpers.experiment import command
from tests.helpers.scripted import scripted_experiment


@pytest.fixture
def path(tmp_path: Path) -> Path:
    questions = [{"id": f"q{i}", "text": f"Who keeps harbour {i}?", "answers": ["Ada"]} for i in range(3)]
    test = [{"id": "t", "text": "Which sea is it?", "answers": ["the north"]}]
    return scripted_experiment(tmp_path, [{"default": "Ada"}], {"train": questions, "test": test})


def test_later_commands_need_none_of_them_and_say_which_are_in_force(path: Path) -> None:
    made = command("-m", "ratchet", "sample", "--config", str(path), "--set", "sampling.samples=2")
    assert made.returncode == 0 and "still applies" not in made.stdout, made.stdout
    again = command("-m", "ratchet", "sample", "--config", str(path))
    assert "run: the run was started with --set sampling.samples=2, which still applies" in again.stdout
    assert "6 trajectories of 3 questions" in again.stdout
    scored = command("-m", "ratchet", "score", "--config", str(path))
    assert scored.returncode == 0 and scored.stdout.count("still applies") == 1, scored.stdout
    assert Experiment(path).config.sampling.samples == 2
    refused = command("-m", "ratchet", "sample", "--config", str(path), "--set", "sampling.samples=3")
    assert refused.returncode == 2 and "sampling.samples: 2 there, 3 now" in refused.stdout


def test_another_value_takes_precedence_and_is_kept_until_something_was_sampled(path: Path) -> None:
    folder = open_run(open_config(path, ["sampling.samples=2", "training.epochs=1", f"run={path.parent / 'other'}"]))
    assert json.loads(folder.overrides.read_text()) == ["sampling.samples=2", "training.epochs=1"]
    elsewhere = f"run={folder.path}"
    open_run(open_config(path, ["training.epochs=4", elsewhere]))
    config = open_config(path, [elsewhere])
    assert (config.sampling.samples, config.training.epochs) == (2, 4)
    assert not RunFolder(Path(open_config(path).run)).overrides.exists(), "the config's own folder was not made"


@pytest.mark.parametrize("content", ["{", "3", '[["a"]]'])
def test_a_damaged_record_of_them_is_named(path: Path, content: str) -> None:
    folder = open_run(open_config(path, ["sampling.samples=2"]))
    folder.overrides.write_text(content)
    with pytest.raises(UserError, match=r"overrides\.json: is .*delete it, and give --set again"):
        open_config(path)
