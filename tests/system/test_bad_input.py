"""What a user gets wrong: each a clear message and exit status 2, with nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.helpers.experiment import command, make_experiment, write_lines


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config whose index is built."""
    config = make_experiment(tmp_path_factory.mktemp("bad"), questions=2)
    built = command("-m", "ratchet", "index", "--config", str(config))
    assert built.returncode == 0, built.stdout
    return config


def fails(*arguments: str) -> str:
    """The message of a command that must fail as a user's mistake: no traceback, status 2."""
    result = command(*arguments)
    assert result.returncode == 2, result.stdout
    assert "Traceback" not in result.stdout
    return result.stdout


def changed(config: Path, folder: Path, **changes: object) -> str:
    data = yaml.safe_load(config.read_text())
    data["run"] = str(folder / "run")
    for key, value in changes.items():
        section, _, name = key.partition("__")
        data[section] = {**data[section], name: value} if name else value
    path = folder / "changed.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


def test_a_model_without_a_chat_template(indexed: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in (indexed.parent / "model").iterdir():
        if file.name != "chat_template.jinja":
            (model / file.name).write_bytes(file.read_bytes())
    agent = {"path": str(model), "dtype": "float32", "device": "cpu"}
    path = changed(indexed, tmp_path, models={"agent": agent})
    assert f"{model} has no chat template" in fails("-m", "ratchet", "sample", "--config", path)


def test_no_selected_trajectories_at_all(indexed: Path, tmp_path: Path) -> None:
    rewards = {"weights": {"f1": 1.0}}
    path = changed(indexed, tmp_path, models__agent=wrong_answers(indexed, tmp_path), rewards=rewards)
    sampled = command("-m", "ratchet", "sample", "--config", path)
    assert sampled.returncode == 0, sampled.stdout
    assert "no trajectory was selected" in fails("-m", "ratchet", "score", "--config", path).casefold()
    selection = json.loads((tmp_path / "run" / "round-1" / "selection.json").read_text())
    assert all(choice["reason"].startswith("dropped") for choice in selection["questions"])
    fails("train.py", "--config", path)
    assert list((tmp_path / "run" / "round-1" / "trajectories").glob("*.jsonl")), "what was sampled is kept"


def wrong_answers(config: Path, folder: Path) -> dict[str, object]:
    rules = [json.loads(line) for line in (config.parent / "script.jsonl").read_text().splitlines()]
    for rule in rules:
        if rule.get("prompt") == "Answer the question":
            rule["replies"] = ['{"answer": "nobody"}']
    write_lines(folder / "script.jsonl", *rules)
    agent = yaml.safe_load(config.read_text())["models"]["agent"]
    return {**agent, "script": str(folder / "script.jsonl")}
