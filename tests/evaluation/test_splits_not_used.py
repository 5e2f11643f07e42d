"""Evaluating, and reading what was evaluated, ask for no other questions than those that they use."""

import json
from pathlib import Path

import pytest
import yaml

from ratchet.core.errors import UserError
from tests.helpers.commands import command_of
from tests.helpers.scripted import write_lines

evaluate = command_of("evaluate")
questions = command_of("questions")
report = command_of("report")
sample = command_of("sample")
status = command_of("status")


@pytest.mark.slow
def test_evaluating_and_reading_need_no_training_questions(config_path: Path) -> None:
    folder, config = config_path.parent, ["--config", str(config_path)]
    settings = yaml.safe_load(config_path.read_text())
    settings["questions"] |= {name: {"path": str(folder / f"{name}.jsonl")} for name in ("train", "dev")}
    config_path.write_text(yaml.safe_dump(settings))
    evaluate([*config, "--base-only", "--phase", "sample"])
    evaluate([*config, "--base-only", "--phase", "score"])
    evaluate([*config])
    manifest = folder / "run" / "manifest.json"
    assert json.loads(manifest.read_text())["questions"].keys() == {"test"}
    evaluate(["table", *config])
    report(config)
    status(config)
    for command in (lambda: sample(config), lambda: questions(["check", *config])):
        with pytest.raises(UserError, match=r"train\.jsonl"):
            command()
    with pytest.raises(UserError, match=r"dev\.jsonl"):
        evaluate([*config, "--base-only", "--split", "dev"])
    for name in ("train", "dev"):
        write_lines(folder / f"{name}.jsonl", [{"text": f"Who keeps {name}?", "answers": ["Ada Pell"]}])
    evaluate([*config, "--base-only", "--split", "dev"])
    assert json.loads(manifest.read_text())["questions"].keys() == {"test", "dev"}, "the folder is the same run"
    sample(config)
    assert json.loads(manifest.read_text())["questions"].keys() == {"train", "dev", "test"}
