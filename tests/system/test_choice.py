"""The reward on dev chooses a round's adapter, as a stage of the whole loop and as a command of its own."""

import json
from pathlib import Path

import pytest
import yaml

from ratchet.core.runfolder import RunFolder
from ratchet.inference.adapters import adapter_digest
from ratchet.rounds.records import AdapterChoice
from tests.helpers.experiment import command, make_experiment


@pytest.mark.slow
def test_the_round_gets_the_adapter_that_the_reward_on_dev_chose(tmp_path: Path) -> None:
    path = make_experiment(tmp_path, questions=4)
    settings = yaml.safe_load(path.read_text())
    settings["training"] |= {"choose_by": "reward", "max_steps": 3, "eval_steps": 1}
    path.write_text(yaml.safe_dump(settings))
    done = command("selftrain.py", "--config", str(path))
    assert done.returncode == 0, done.stdout
    folder = RunFolder(tmp_path / "run").round(1)
    choice = AdapterChoice.model_validate_json(folder.choice.read_bytes())
    assert [one.step for one in choice.candidates] == [1, 2, 3]
    assert adapter_digest(folder.adapter) == choice.digest
    facts = json.loads((folder.adapter / "training.json").read_text())
    assert (facts["step"], facts["chosen_by"]) == (choice.step, choice.reason)
    assert choice.reason in done.stdout

    again = command("selftrain.py", "--config", str(path))
    assert again.stdout.count(": done before") == 7, again.stdout
    by_hand = command("-m", "ratchet", "choose", "--config", str(path))
    assert choice.reason in by_hand.stdout and adapter_digest(folder.adapter) == choice.digest
